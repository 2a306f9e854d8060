"""Samples the Python stacks of DataLoader workers, which are processes of their own.

When a loop waits for its loader, the line to mend runs in a worker. A worker that is forked while a
recording goes on samples its own main thread, and writes what it has seen to a file every half a
second; the recording reads the files of all workers when it is written. A worker that starts in
another way, by spawning, knows nothing of profkit and is not sampled.

Nothing of the program is replaced in its objects: torch looks up the function that a worker runs
when it makes the process, and finds one here that calls the original.

Source: ``_MultiProcessingDataLoaderIter.__init__`` in ``torch/utils/data/dataloader.py``, which
passes ``_utils.worker._worker_loop`` as the target of a process; ``fetch`` in
``torch/utils/data/_utils/fetch.py`` makes the batches.
"""

import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from profkit.capture.process.stack_sampler import StackSample, StackSampler
from profkit.capture.process.thread_stacks import Call, Calls
from profkit.capture.process.wrappers import replace_attribute
from profkit.capture.recording.sampled_calls import (
    StackTime,
    add_time,
    find_sampled_calls,
    time_of_sample,
)
from profkit.capture.source.files import SourceFiles
from profkit.model.capture_info import LoaderWorkers

MAX_SHARE: Final = 0.01
"""The share of a core that the samples of one worker take."""
_WRITE_INTERVAL_NS: Final = 500_000_000
_MAX_NS: Final = 20_000_000_000
"""A worker samples no longer: a recording that begins later reads what its first seconds were."""
_MAX_STACKS: Final = 300
_LOOP: Final = "_worker_loop"
_FETCH: Final = "torch/utils/data/_utils/fetch.py"
_SUFFIX: Final = ".json"


class _ProcessState:
    """Where workers of this process write their samples.

    Attributes:
        folder: The folder; empty while no worker is to be sampled.
        pid: The process that made the folder, and removes it.
        restore: Restores torch's function, once it is replaced.
    """

    folder: str = ""
    pid: int = 0
    restore: Callable[[], None] | None = None


_state: Final = _ProcessState()


def begin() -> None:
    """Have workers sample themselves that are forked from here on, if torch has its loader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if _state.folder or worker is None or not hasattr(os, "fork"):
        return
    loop = getattr(worker, _LOOP, None)
    with contextlib.suppress(OSError):
        if loop is not None:
            _state.folder, _state.pid = tempfile.mkdtemp(prefix="profkit-workers-"), os.getpid()
            _state.restore = replace_attribute(worker, _LOOP, _wrap_loop(loop))


def end() -> None:
    """Let workers be torch's own again; those that sample stop when they see it."""
    folder, _state.folder = _state.folder, ""
    restore, _state.restore = _state.restore, None
    if restore is not None:
        restore()
    if folder and _state.pid == os.getpid():
        # The program's audit hooks may refuse the call itself.
        with contextlib.suppress(OSError):
            shutil.rmtree(folder, ignore_errors=True)


def read() -> LoaderWorkers | None:
    """Return what the workers have sampled so far; None if no worker has."""
    stacks: dict[tuple[Calls, int], StackTime] = {}
    n_workers = n_samples = sampled_ns = waiting_ns = 0
    for written in _read_files():
        n_workers += 1
        for calls, instruction, spent in written:
            n_samples += spent.n
            sampled_ns += spent.ns
            in_fetch = _below_fetch(calls)
            if in_fetch is not None:
                waiting_ns += spent.waiting_ns
                add_time(stacks, (in_fetch, instruction), spent, sys.maxsize)

    if not stacks:
        return None
    return LoaderWorkers(
        n_workers=n_workers,
        n_samples=n_samples,
        sampled_ns=sampled_ns,
        fetching_ns=sum(spent.ns for spent in stacks.values()),
        functions=find_sampled_calls(stacks, SourceFiles(), waiting_ns),
    )


def _wrap_loop(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return a worker's function that samples its thread meanwhile."""

    @functools.wraps(loop)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # Who has kept this function may call it when nothing is recorded any more.
        if not _state.folder:
            return loop(*args, **kwargs)

        samples = _WorkerSamples(_state.folder)
        samples.begin()
        try:
            return loop(*args, **kwargs)
        finally:
            samples.end()

    # A process that is spawned finds the function by its name, which is the original's.
    return _worker_loop


class _WorkerSamples:
    """Samples the calling thread of a worker, and writes what it has seen.

    Args:
        folder: Where to write; sampling ends when it is gone.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, f"{os.getpid()}{_SUFFIX}")  # noqa: PTH118  (in a thread)
        self._thread = threading.get_ident()
        self._sampler = StackSampler(on_sample=self._add, max_share=MAX_SHARE)
        self._stacks: dict[tuple[Calls, int], StackTime] = {}
        self._sampled_ns = time.time_ns()
        self._until_ns = self._sampled_ns + _MAX_NS
        self._written_ns = self._sampled_ns

    def begin(self) -> None:
        """Begin to sample."""
        # To look for profilers among all objects would copy the memory that workers share.
        self._sampler.start(looks_for_profilers=False)

    def end(self) -> None:
        """Sample no more, and write the last time."""
        if self._sampler.is_on:
            self._sampler.stop()
            self._write()

    def _add(self, samples: list[StackSample]) -> None:
        """Take a sample, in the thread that samples."""
        for sample in samples:
            if sample.thread != self._thread:
                continue
            elapsed_ns = max(0, sample.time_ns - self._sampled_ns)
            self._sampled_ns = sample.time_ns
            spent = time_of_sample(sample, elapsed_ns)
            add_time(self._stacks, (sample.calls, sample.instruction), spent, _MAX_STACKS)

        if self._sampled_ns >= self._written_ns + _WRITE_INTERVAL_NS:
            self._written_ns = self._sampled_ns
            if not self._write() or self._sampled_ns > self._until_ns:
                self._sampler.stop()

    def _write(self) -> bool:
        """Write what was sampled so far, whole or not at all; return whether that was possible."""
        rows = [[*key, vars(spent)] for key, spent in list(self._stacks.items())]
        try:
            with open(self._path + ".new", "w", encoding="utf-8") as sink:  # noqa: PTH123
                json.dump(rows, sink)
            os.replace(self._path + ".new", self._path)  # noqa: PTH105
        except OSError:
            return False
        return True


def _read_files() -> Iterator[list[tuple[Calls, int, StackTime]]]:
    """Read what each worker has written."""
    for path in sorted(Path(_state.folder).glob(f"*{_SUFFIX}")) if _state.folder else ():
        with contextlib.suppress(OSError, ValueError):
            rows = json.loads(path.read_bytes())
            yield [
                (tuple(map(_as_call, calls)), instruction, StackTime(**spent))
                for calls, instruction, spent in rows
            ]


def _as_call(place: list[Any]) -> Call:
    """Return a call as it was before it was written."""
    file, line, name = place
    return file, line, name


def _below_fetch(calls: Calls) -> Calls | None:
    """Return the calls that make a batch; None where a worker does something else, as to wait."""
    for place, (file, _, _) in enumerate(calls):
        if file.endswith(_FETCH):
            return tuple(call for call in calls[place:] if not call[0].endswith(_FETCH))
    return None
