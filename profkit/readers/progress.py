"""Measures how much of a file has been read, and how long each stage of reading takes."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol

OnProgress = Callable[[int, int], None]
"""Called with the bytes read from a file as stored, and the file's size (0 if not known).

An archive may be read twice, so the first number can decrease.
"""


class _Reads(Protocol):
    def read(self, n_bytes: int, /) -> Any: ...  # noqa: ANN401  (bytes-like)


class ProgressReads:
    """A file that reports after each read how much of it has been read."""

    def __init__(self, raw: BinaryIO, on_progress: OnProgress) -> None:
        self._raw = raw
        self._on_progress = on_progress
        self._n_bytes = n_bytes_of(raw)

    def read(self, n_bytes: int = -1) -> Any:  # noqa: ANN401  (bytes-like)
        """Read bytes."""
        chunk = self._raw.read(n_bytes)
        self._on_progress(self._raw.tell(), self._n_bytes)
        return chunk

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (an attribute of the file)
        return getattr(self._raw, name)


def n_bytes_of(raw: BinaryIO) -> int:
    """Return the size of an open local or remote file; 0 if unknown, as on some servers."""
    try:
        return os.fstat(raw.fileno()).st_size
    except (OSError, AttributeError):  # not a local file
        return int(getattr(raw, "size", None) or 0)


class Stages:
    """Stopwatches for the stages of reading.

    Attributes:
        ns: Nanoseconds by stage, without the stages inside it.
    """

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        # One entry per open stage: the time of the stages inside it.
        self._inner_ns: list[int] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a block."""
        began_ns = time.perf_counter_ns()
        self._inner_ns.append(0)
        try:
            yield
        finally:
            took_ns = time.perf_counter_ns() - began_ns
            inner_ns = self._inner_ns.pop()
            self.ns[name] = self.ns.get(name, 0) + took_ns - inner_ns
            if self._inner_ns:
                self._inner_ns[-1] += took_ns


class TimedReads:
    """A file whose reads are measured as a stage."""

    def __init__(self, raw: _Reads, stages: Stages, name: str) -> None:
        self._raw = raw
        self._stages = stages
        self._name = name

    def read(self, n_bytes: int = -1) -> Any:  # noqa: ANN401  (bytes-like)
        """Read bytes."""
        with self._stages.stage(self._name):
            return self._raw.read(n_bytes)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (an attribute of the file)
        return getattr(self._raw, name)
