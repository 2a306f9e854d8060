"""Analyzes recordings in background processes.

An analysis is CPU-bound: in a separate process it does not block the server's threads, returns its
memory at the end, and cannot crash the server.
"""

import atexit
import contextlib
import heapq
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.integrations.tensorboard.cache import ResultCache

WORKER: Final = "profkit.integrations.tensorboard.worker"
_TIMEOUT_S: Final = 1800.0
_STDERR_BYTES: Final = 2_000
_MAX_FAILURES: Final = 1_000
_NICENESS: Final = 10
"""Of background tasks."""
_BACKGROUND: Final = 1
"""The priority of background tasks; urgent ones have a lower number."""

Stage = Literal["waiting", "queued", "analyzing", "ready", "failed"]


@dataclass(frozen=True)
class Task:
    """A task: the cache key of its result, and the worker's arguments after the output folder."""

    key: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class TaskState:
    """The progress of a task.

    Attributes:
        stage: ``waiting``: it was never submitted. ``ready``: its result is cached; the result may
            be an error about the file. ``failed``: the process died and left no result.
        message: Why it failed.
        hint: How to proceed.
    """

    stage: Stage
    message: str = ""
    hint: str = ""


class AnalysisQueue:
    """A queue of tasks, and the threads that run them.

    Args:
        cache: Where results go.
        n_processes: Concurrent processes. All but one run only urgent tasks, so that these need
            not wait for background tasks.
        timeout_s: Limit of a task in seconds.
        worker: The module that runs a task.
    """

    def __init__(
        self,
        cache: ResultCache,
        n_processes: int = 2,
        timeout_s: float = _TIMEOUT_S,
        worker: str = WORKER,
    ) -> None:
        self._cache = cache
        self._n_processes = n_processes
        self._timeout_s = timeout_s
        self._worker = worker
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, Task]] = []  # priority, unique number, task
        self._numbers = itertools.count()
        self._stages: dict[str, Stage] = {}
        self._failures: OrderedDict[str, TaskState] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def state(self, key: str) -> TaskState:
        """Return the progress of a task."""
        with self._changed:
            if stage := self._stages.get(key):
                return TaskState(stage)
            if failure := self._failures.get(key):
                return failure
        return TaskState("ready" if self._cache.has(key) else "waiting")

    def submit(self, task: Task, *, urgent: bool, retry: bool = False) -> TaskState:
        """Queue a task unless its result is cached or on the way. Returns at once.

        Args:
            urgent: Whether a user waits for it: urgent tasks run first, the latest before all.
            retry: Whether to run a failed task again.
        """
        with self._changed:  # or another thread begins what is queued here for the second time
            state = self.state(task.key)
            if state.stage in {"ready", "analyzing"} or (state.stage == "failed" and not retry):
                return state
            if self._closed or (state.stage == "queued" and not urgent):
                return state

            self._failures.pop(task.key, None)
            self._stages[task.key] = "queued"
            number = next(self._numbers)
            heapq.heappush(self._queue, (-number if urgent else _BACKGROUND, number, task))
            if not self._threads:
                self._start()
            self._changed.notify_all()

        return TaskState("queued")

    def close(self) -> None:
        """Stop, and kill running processes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            running = list(self._running)
        for process in running:
            with contextlib.suppress(OSError):
                process.kill()

    def _start(self) -> None:
        atexit.register(self.close)
        for number in range(self._n_processes):
            thread = threading.Thread(
                target=self._work, args=(number > 0,), name="profkit analyze", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _work(self, urgent_only: bool) -> None:  # noqa: FBT001  (a thread's argument)
        while entry := self._await_task(urgent_only=urgent_only):
            priority, _, task = entry
            try:
                failure = self._execute(task, is_urgent=priority != _BACKGROUND)
            except Exception as error:  # noqa: BLE001  (a full disk, no more processes: the thread lives on)
                failure = TaskState("failed", f"The analysis failed: {error}.", "Try again.")

            with self._changed:
                del self._stages[task.key]
                if failure is not None:
                    self._failures[task.key] = failure
                    while len(self._failures) > _MAX_FAILURES:
                        self._failures.popitem(last=False)

    def _await_task(self, *, urgent_only: bool) -> tuple[int, int, Task] | None:
        """Wait for the next task; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                while self._queue and not (urgent_only and self._queue[0][0] == _BACKGROUND):
                    entry = heapq.heappop(self._queue)
                    # Else it was submitted twice, and runs already or is finished.
                    key = entry[-1].key
                    if self._stages.get(key) == "queued":
                        self._stages[key] = "analyzing"
                        return entry
                self._changed.wait()
        return None

    def _execute(self, task: Task, *, is_urgent: bool) -> TaskState | None:
        """Run the worker: return None once its result is cached, else why it failed."""
        draft = self._cache.draft()
        try:
            with tempfile.TemporaryFile() as stderr:
                code = self._run(task, draft, stderr.fileno(), is_urgent=is_urgent)
                # The last line has the error; the output before it may be long.
                stderr.seek(0, os.SEEK_END)
                stderr.seek(max(0, stderr.tell() - _STDERR_BYTES))
                lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
            if code == 0:
                self._cache.commit(draft, task.key)
                return None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

        # Negative codes are signals.
        if code is None:
            minutes = self._timeout_s / 60
            message = f"The analysis timed out after {minutes:,.0f} minutes."
            return TaskState("failed", message, "`profkit analyze` has no time limit.")
        if code < 0:
            message = f"The analysis process was killed by signal {-code}."
            return TaskState("failed", message, "Signal 9 often means that memory ran out.")
        last = lines[-1] if lines else "no message"
        message = f"The analysis process exited with code {code}: {last}."
        return TaskState("failed", message, "Run `profkit analyze` on the file for details.")

    def _run(self, task: Task, draft: Path, stderr: int, *, is_urgent: bool) -> int | None:
        """Run the worker and return its exit code, or None after the timeout."""
        paths = (str(Path(folder).absolute()) for folder in sys.path if folder)
        # No analysis uses NumPy's linear algebra, whose threads wait busily for work at first.
        environment = {
            "OPENBLAS_NUM_THREADS": "1",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
        }

        process = subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
            [sys.executable, "-m", self._worker, str(draft), *task.arguments],
            stdin=subprocess.PIPE,  # it is closed when the server ends, however that happens
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=draft,  # -m searches the current folder first: this one is empty
            env=environment,
        )

        with process:
            if not is_urgent:
                with contextlib.suppress(OSError, AttributeError):  # Windows has no niceness
                    os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            # A close that came before this line has not killed the process.
            with self._changed:
                self._running.add(process)
                if self._closed:
                    process.kill()
            try:
                return process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return None
            finally:
                with self._changed:
                    self._running.discard(process)
