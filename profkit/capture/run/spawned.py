"""Workers that a recorded program spawns: each records itself as ``profkit run`` does.

``torch.multiprocessing.spawn`` and the start methods ``spawn`` and ``forkserver`` send a pickled
process to a new interpreter. A worker's has an attribute more, which begins recording when it is
unpickled; ``multiprocessing`` ends it after the worker's function, as it does its own queues. What
libraries start is not recorded: workers of loaders and pools, servers of managers. Nor is a worker
without steps: it helps others.

Source: ``multiprocessing.context.SpawnProcess._Popen`` and ``multiprocessing.process.BaseProcess.
_bootstrap``, the same in Python 3.11 to 3.14.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import context, spawn, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profkit.capture.process import console
from profkit.capture.process.files import safe_name, trace_folder
from profkit.capture.process.launch import is_alive
from profkit.capture.process.wrappers import replace_attribute
from profkit.capture.run.plan import Plan
from profkit.dataclass import dataclass
from profkit.folders import traces_folder

if TYPE_CHECKING:
    from profkit.capture.run.run import RunResult

MAX_WORKERS: Final = 64
"""Workers of one program that record themselves; many more are tasks, and not ranks."""
_OF_LIBRARIES: Final = ("multiprocessing", "concurrent", "torch.utils.data", "joblib", "loky")
_ATTRIBUTE: Final = "_profkit_recording"
_KINDS: Final = ("SpawnProcess", "ForkServerProcess")


@dataclass(frozen=True)
class _Order:
    """What a worker is to record, and the file in which it says what it has recorded."""

    plan: Plan
    file: str

    def __reduce__(self) -> tuple[Callable[..., "_Order"], tuple[Plan, str]]:
        return _begin, (self.plan, self.file)


class SpawnedWorkers:
    """The workers that this process spawns.

    Args:
        plan: What each is to record.
        folder: The working folder of the program.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        recordings = folder / (plan.options.folder or traces_folder())
        self._plan = replace(plan, options=replace(plan.options, folder=str(recordings)))
        traces = trace_folder(str(recordings), plan.name)
        self._folder = traces / f"{_folders_of_host()}{os.getpid()}"
        _remove_stale(traces)
        self._pid = os.getpid()
        self._n_workers = 0
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Have each worker from now on record itself."""
        for name in _KINDS:
            kind = getattr(context, name, None)
            if kind is not None:
                popen = staticmethod(self._wrap_popen(kind._Popen))  # noqa: SLF001
                self._undo.append(replace_attribute(kind, "_Popen", popen))

    def stop(self) -> None:
        """Leave ``multiprocessing`` as it was."""
        while self._undo:
            self._undo.pop()()

    def end(self) -> tuple[list[tuple[str, ...]], int]:
        """Read what the workers have recorded, and remove their folder.

        Returns:
            The files of each that has ended and recorded something; how many have not ended, or
            were killed.
        """
        recorded, n_unknown = [], 0
        for number in range(self._n_workers):
            try:
                files = tuple(map(str, json.loads((self._folder / str(number)).read_text())))
            except (OSError, ValueError):
                n_unknown += 1
                continue
            if files:
                recorded.append(files)

        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
        return recorded, n_unknown

    def _wrap_popen(self, original: Callable[[BaseProcess], Any]) -> Callable[[BaseProcess], Any]:
        def popen(process: BaseProcess) -> Any:  # noqa: ANN401  (a private class)
            is_worker = self._is_worker(process)
            if is_worker:
                setattr(process, _ATTRIBUTE, self._make_order())
            # For the time in which the process is pickled: the program may look at its attributes.
            try:
                return original(process)
            finally:
                if is_worker:
                    delattr(process, _ATTRIBUTE)

        return popen

    def _is_worker(self, process: BaseProcess) -> bool:
        """Return whether a process runs the program's own function, in this Python."""
        if self._n_workers >= MAX_WORKERS or os.getpid() != self._pid:
            return False
        if os.fsdecode(spawn.get_executable()) != sys.executable:
            return False  # there may be no profkit, and the worker could not be unpickled

        # A subclass of Process that overrides `run()` has no target.
        target = getattr(process, "_target", None) or type(process)
        module = str(getattr(target, "__module__", ""))
        is_of_torch = module.startswith("torch.multiprocessing")
        return is_of_torch or not f"{module}.".startswith(tuple(f"{m}." for m in _OF_LIBRARIES))

    def _make_order(self) -> _Order:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._n_workers += 1
        return _Order(self._plan, str(self._folder / str(self._n_workers - 1)))


def _folders_of_host() -> str:
    """Return how the names of the folders begin in which workers on this machine write."""
    return f".workers-{safe_name(socket.gethostname())}_"


def _remove_stale(traces: Path) -> None:
    """Remove what the workers of programs have left that were killed with them.

    Args:
        traces: The folder of the recordings.
    """
    for folder in traces.glob(f"{_folders_of_host()}*"):
        pid = folder.name.removeprefix(_folders_of_host())
        if pid.isdigit() and not is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _begin(plan: Plan, file: str) -> _Order:
    """Begin recording in a worker, before its function runs."""
    try:
        _Worker(plan, file)
    except Exception as error:  # noqa: BLE001  (the worker runs whatever happens to us)
        console.warn("recording could not start; a worker runs without it.", error)
    return _Order(plan, file)


class _Worker:
    """This process, a worker that records itself until its function has ended."""

    def __init__(self, plan: Plan, file: str) -> None:
        from profkit.capture.run.run import ProgramRun

        self._file = file
        self._is_over = False
        self._run = ProgramRun(plan, killed=self._write, needs_steps=True)
        self._run.begin()
        self._end_with_process()
        # Some versions forget what was registered before the function runs.
        util.register_after_fork(self, _Worker._end_with_process)

    def _end_with_process(self) -> None:
        util.Finalize(None, self._end, exitpriority=1000)

    def _end(self) -> None:
        if self._is_over or not self._run.is_parent:
            return
        self._is_over = True
        error = sys.exc_info()[1]
        self._run.end(error)
        self._run.stop()
        self._write(self._run.outcome(error))

    def _write(self, outcome: "RunResult") -> None:
        """Say which files there are, for the process that has started this one."""
        if not outcome.is_of_child:
            with contextlib.suppress(OSError):
                partial = Path(f"{self._file}.part")
                partial.write_text(json.dumps(outcome.files))
                partial.replace(self._file)
