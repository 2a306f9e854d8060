"""Samples the Python stacks of DataLoader workers, which are processes of their own.

When a loop waits for its loader, the line to mend runs in a worker. A worker that starts while a
recording goes on samples its own main thread, and adds what it has seen to a file every half a
second; the recording reads the files of all workers when it is written. A worker that is forked has
all of this process. One that is spawned, or forked by a server, gets the folder with its function.

Nothing of the program is replaced in its objects: torch looks up the function that a worker runs
when it makes the process, and finds one here that calls the original.

A worker has nothing to do while the loop waits for something else, such as for a profiler to start.
So how busy workers are is known for the time in which the loop's own steps were sampled.

Source: ``_MultiProcessingDataLoaderIter.__init__`` in ``torch/utils/data/dataloader.py``, which
passes ``_utils.worker._worker_loop`` as the target of a process; ``fetch`` in
``torch/utils/data/_utils/fetch.py`` makes the batches.
"""

import contextlib
import functools
import json
import multiprocessing.spawn
import os
import pkgutil
import shutil
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from profkit.capture.process import cpu_time
from profkit.capture.process.stack_sampler import StackSample, StackSampler
from profkit.capture.process.thread_stacks import Call, Calls
from profkit.capture.process.wrappers import replace_attribute
from profkit.capture.recording.sampled_calls import (
    FETCH_FILE,
    StackTime,
    add_time,
    find_sampled_calls,
    time_of_sample,
)
from profkit.capture.recording.step_samples import Span
from profkit.capture.source.files import SourceFiles
from profkit.dataclass import dataclass
from profkit.model.capture_info import LoaderWorkers

MAX_SHARE: Final = 0.01
"""The share of a core that the samples of one worker take."""
_WRITE_INTERVAL_NS: Final = 500_000_000
_MAX_NS: Final = 20_000_000_000
"""A worker samples no longer: a recording that begins later reads what its first seconds were."""
_MAX_STACKS: Final = 300
_MIN_IN_STEPS: Final = 10
"""Fewer samples in the sampled steps do not tell how busy workers are."""
_MODULE: Final = "torch.utils.data._utils.worker"
_LOOP: Final = "_worker_loop"
_SUFFIX: Final = ".jsonl"

_Loop = Callable[..., Any]
_Key = tuple[Calls, int]
"""A stack, and the instruction of its innermost frame."""


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


@dataclass(frozen=True)
class _WorkerSample:
    """One sample of a worker.

    Attributes:
        end_ns: When it was taken; it represents the time before.
    """

    key: _Key
    end_ns: int
    spent: StackTime


_state: Final = _ProcessState()


def begin() -> None:
    """Have workers sample themselves that start from here on, if torch has its loader."""
    worker = sys.modules.get(_MODULE)
    if _state.folder or worker is None or not hasattr(os, "fork"):
        return
    loop = getattr(worker, _LOOP, None)
    with contextlib.suppress(OSError):
        if loop is not None:
            _state.folder, _state.pid = tempfile.mkdtemp(prefix="profkit-workers-"), os.getpid()
            _state.restore = replace_attribute(worker, _LOOP, _SampledLoop(loop))


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


def read(steps: Sequence[Span] = ()) -> LoaderWorkers | None:
    """Return what the workers have sampled so far; None if no worker has.

    Args:
        steps: When the program's own steps were sampled, in order.
    """
    stacks: dict[_Key, StackTime] = {}
    n_workers = waiting_ns = 0
    at_any_time, in_steps = _Busy(), _Busy()
    for samples in _read_files():
        n_workers += 1
        for sample in samples:
            calls, instruction = sample.key
            spent_ns, in_fetch = sample.spent.ns, _below_fetch(calls)
            at_any_time.add(spent_ns, is_busy=in_fetch is not None)

            in_steps_ns = _overlap_ns(steps, sample.end_ns - spent_ns, sample.end_ns)
            if in_steps_ns:
                in_steps.add(in_steps_ns, is_busy=in_fetch is not None)

            if in_fetch is not None:
                waiting_ns += sample.spent.waiting_ns
                add_time(stacks, (in_fetch, instruction), sample.spent, sys.maxsize)

    if not stacks:
        return None
    busy = in_steps if in_steps.n_samples >= _MIN_IN_STEPS else at_any_time
    return LoaderWorkers(
        n_workers=n_workers,
        n_samples=busy.n_samples,
        sampled_ns=busy.sampled_ns,
        fetching_ns=busy.busy_ns,
        functions=find_sampled_calls(stacks, SourceFiles(), waiting_ns),
    )


@dataclass
class _Busy:
    """Sampled time of workers, and how much of it they prepared batches."""

    n_samples: int = 0
    sampled_ns: int = 0
    busy_ns: int = 0

    def add(self, ns: int, *, is_busy: bool) -> None:
        """Add the time of a sample."""
        self.n_samples += 1
        self.sampled_ns += ns
        self.busy_ns += ns if is_busy else 0


def _overlap_ns(spans: Sequence[Span], begin_ns: int, end_ns: int) -> int:
    """Return how much of a time is in some spans, which are in order."""
    overlap_ns = 0
    for start_ns, stop_ns in spans[bisect_left(spans, begin_ns, key=lambda span: span[1]) :]:
        if start_ns >= end_ns:
            break
        overlap_ns += max(0, min(stop_ns, end_ns) - max(start_ns, begin_ns))
    return overlap_ns


class _SampledLoop:
    """Torch's function that a worker runs; samples its thread meanwhile.

    A process that is spawned gets it pickled: its folder, or where nothing is recorded any more the
    name of torch's function.
    """

    def __init__(self, loop: _Loop) -> None:
        functools.update_wrapper(self, loop)
        self._loop = loop

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run a worker, in its own process."""
        # Who has kept this function may call it when nothing is recorded any more.
        if not _state.folder:
            return self._loop(*args, **kwargs)
        return _run_sampled(self._loop, _state.folder, *args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        """Return what makes the function in another process."""
        # Another Python may not be able to import profkit.
        executable = multiprocessing.spawn.get_executable()
        is_same = os.fsdecode(executable or "") == sys.executable
        if _state.folder and is_same:
            return _import_sampled, (_state.folder,)
        return pkgutil.resolve_name, (f"{_MODULE}:{_LOOP}",)


def _import_sampled(folder: str) -> _Loop:
    """Return torch's function with the samples of its thread, in a process that was spawned."""
    loop: _Loop = pkgutil.resolve_name(f"{_MODULE}:{_LOOP}")
    return functools.partial(_run_sampled, loop, folder)


def _run_sampled(loop: _Loop, folder: str, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Run a worker, and sample its thread meanwhile."""
    samples = _WorkerSamples(folder)
    samples.begin()
    try:
        return loop(*args, **kwargs)
    finally:
        samples.end()


class _WorkerSamples:
    """Samples the calling thread of a worker, and writes what it has seen.

    Args:
        folder: Where to write; sampling ends when it is gone.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, f"{os.getpid()}{_SUFFIX}")  # noqa: PTH118  (in a thread)
        self._thread = threading.get_ident()
        self._sampler = StackSampler(on_sample=self._add, max_share=MAX_SHARE)
        self._number_of: dict[_Key, int] = {}
        self._new_stacks: list[_Key] = []
        self._new_samples: list[tuple[int, int, dict[str, int]]] = []
        self._ready_ns = cpu_time.main_ready_ns()
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
            ready_ns = cpu_time.main_ready_ns()
            if ready_ns is not None and self._ready_ns is not None:
                # By the system's accounts, as a sample also waits where there is no core.
                waiting_ns = elapsed_ns - (ready_ns - self._ready_ns)
                spent.waiting_ns = min(elapsed_ns, max(0, waiting_ns))
            self._ready_ns = ready_ns
            self._keep((sample.calls, sample.instruction), spent)

        if self._sampled_ns >= self._written_ns + _WRITE_INTERVAL_NS:
            self._written_ns = self._sampled_ns
            if not self._write() or self._sampled_ns > self._until_ns:
                self._sampler.stop()

    def _keep(self, key: _Key, spent: StackTime) -> None:
        """Keep a sample until it is written; new stacks beyond the most are left out."""
        if key not in self._number_of:
            if len(self._number_of) >= _MAX_STACKS:
                return
            self._number_of[key] = len(self._number_of)
            self._new_stacks.append(key)
        self._new_samples.append((self._number_of[key], self._sampled_ns, vars(spent)))

    def _write(self) -> bool:
        """Add a line of new samples to the file; return whether the folder is still there."""
        stacks, self._new_stacks = self._new_stacks, []
        samples, self._new_samples = self._new_samples, []
        line = json.dumps([stacks, samples]) + "\n"
        try:
            with open(self._path, "a", encoding="utf-8") as sink:  # noqa: PTH123
                sink.write(line)
        except OSError:
            return False
        return True


def _read_files() -> Iterator[list[_WorkerSample]]:
    """Read what each worker has written."""
    for path in sorted(Path(_state.folder).glob(f"*{_SUFFIX}")) if _state.folder else ():
        samples: list[_WorkerSample] = []
        # A worker may be about to write the last line.
        with contextlib.suppress(OSError, ValueError):
            stacks: list[_Key] = []
            for line in path.read_text(encoding="utf-8").splitlines():
                new_stacks, new_samples = json.loads(line)
                stacks += [(tuple(map(_as_call, calls)), place) for calls, place in new_stacks]
                samples += [
                    _WorkerSample(stacks[number], end_ns, StackTime(**spent))
                    for number, end_ns, spent in new_samples
                ]
        if samples:
            yield samples


def _as_call(place: list[Any]) -> Call:
    """Return a call as it was before it was written."""
    file, line, name = place
    return file, line, name


def _below_fetch(calls: Calls) -> Calls | None:
    """Return the calls that make a batch; None where a worker does something else, as to wait."""
    for place, (file, _, _) in enumerate(calls):
        if file.replace("\\", "/").endswith(FETCH_FILE):
            return calls[place:]
    return None
