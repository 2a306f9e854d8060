"""How long each stage of reading takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class _Reads(Protocol):
    def read(self, n_bytes: int, /) -> Any: ...  # noqa: ANN401  (bytes, of whatever class)


class Stages:
    """A stopwatch for each stage.

    Attributes:
        ns: Nanoseconds by the name of the stage. A stage within another counts for itself alone.
    """

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self._within: list[int] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a block."""
        began = time.perf_counter_ns()
        self._within.append(0)
        try:
            yield
        finally:
            took = time.perf_counter_ns() - began
            inner = self._within.pop()
            self.ns[name] = self.ns.get(name, 0) + took - inner
            if self._within:
                self._within[-1] += took


class TimedReads:
    """A file whose reads are measured as a stage."""

    def __init__(self, raw: _Reads, stages: Stages, name: str) -> None:
        self._raw = raw
        self._stages = stages
        self._name = name

    def read(self, n_bytes: int = -1) -> Any:  # noqa: ANN401  (bytes, of whatever class)
        """Read bytes."""
        with self._stages.stage(self._name):
            return self._raw.read(n_bytes)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (as the file has it)
        return getattr(self._raw, name)
