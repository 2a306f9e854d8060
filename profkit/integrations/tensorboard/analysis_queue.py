"""Has recordings analyzed, one after the other, each in a process of its own.

An analysis is all computation: in a process of its own it leaves the server's threads alone, gives
its memory back at the end, and a file that breaks it breaks nothing else.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from profkit.integrations.tensorboard.cache import ResultCache

WORKER: Final = "profkit.integrations.tensorboard.worker"
_LONGEST_S: Final = 1800.0
_LAST_WORDS: Final = 2_000
_MOST_REMEMBERED: Final = 1_000
_NICENESS: Final = 10
"""Of what nobody waits for."""

Stage = Literal["waiting", "queued", "analyzing", "ready", "failed"]


@dataclass(frozen=True)
class Task:
    """One thing to work out.

    Attributes:
        key: The key of the entry that it makes.
        arguments: What the worker is told, after the folder to write to.
    """

    key: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class TaskState:
    """How far a task is.

    Attributes:
        stage: ``waiting``: nobody has asked for it. ``ready``: its entry is there; what was told of
            it may be an error of the file.
        message: Why it failed; a process that died leaves no entry.
        hint: What to do about it.
    """

    stage: Stage
    message: str = ""
    hint: str = ""


_LATER: Final = 1


@dataclass(order=True)
class _Place:
    """A task's place in the queue.

    Attributes:
        urgency: The least comes first; :data:`_LATER` of what nobody waits for.
        number: In the order in which they were asked for.
        task: The task.
    """

    urgency: int
    number: int
    task: Task = field(compare=False)


class AnalysisQueue:
    """A queue of tasks and the threads that have them worked out.

    Args:
        store: Where entries go.
        n_processes: How many may be worked out at once; by default two, so that one is always free
            for what somebody waits for.
        longest_s: After how many seconds one is given up.
        worker: The module that works them out.
    """

    def __init__(
        self,
        store: ResultCache,
        n_processes: int = 2,
        longest_s: float = _LONGEST_S,
        worker: str = WORKER,
    ) -> None:
        self._store = store
        self._n_processes = n_processes
        self._longest_s = longest_s
        self._worker = worker
        self._changed = threading.Condition()
        self._queue: list[_Place] = []
        self._numbers = itertools.count()
        self._stages: dict[str, Stage] = {}
        self._broken: OrderedDict[str, TaskState] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def state(self, key: str) -> TaskState:
        """How far a task is."""
        with self._changed:
            if stage := self._stages.get(key):
                return TaskState(stage)
            if broken := self._broken.get(key):
                return broken
        return TaskState("ready" if self._store.has(key) else "waiting")

    def ask(self, task: Task, *, urgent: bool, again: bool = False) -> TaskState:
        """Have a task worked out, unless it has been or is about to be. Returns at once.

        Args:
            urgent: Whether somebody waits for it: those come first, the latest before all.
            again: Whether to try again what broke the process.
        """
        state = self.state(task.key)
        if state.stage in {"ready", "analyzing"} or (state.stage == "failed" and not again):
            return state
        with self._changed:
            if self._closed or (state.stage == "queued" and not urgent):
                return state
            self._broken.pop(task.key, None)
            self._stages[task.key] = "queued"
            number = next(self._numbers)
            heapq.heappush(self._queue, _Place(-number if urgent else _LATER, number, task))
            if not self._threads:
                self._start()
            self._changed.notify_all()
        return TaskState("queued")

    def close(self) -> None:
        """Stop; what is being worked out is given up."""
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

    def _work(self, urgent_alone: bool) -> None:  # noqa: FBT001  (a thread's argument)
        while place := self._next(urgent_alone=urgent_alone):
            task = place.task
            try:
                broken = self._have_done(task, is_urgent=place.urgency != _LATER)
            except Exception as error:  # noqa: BLE001  (a full disk, no more processes: the thread lives on)
                broken = TaskState("failed", f"It could not be analyzed: {error}.", "Try again.")
            with self._changed:
                del self._stages[task.key]
                if broken is not None:
                    self._broken[task.key] = broken
                    while len(self._broken) > _MOST_REMEMBERED:
                        self._broken.popitem(last=False)

    def _next(self, *, urgent_alone: bool) -> _Place | None:
        """The next task, when there is one; None when all is over."""
        with self._changed:
            while not self._closed:
                while self._queue and not (urgent_alone and self._queue[0].urgency == _LATER):
                    place = heapq.heappop(self._queue)
                    # Else it was asked for twice, and has been or is being worked out.
                    if self._stages.get(place.task.key) == "queued":
                        self._stages[place.task.key] = "analyzing"
                        return place
                self._changed.wait()
        return None

    def _have_done(self, task: Task, *, is_urgent: bool) -> TaskState | None:
        """Run the worker; None if its entry is there, else what went wrong."""
        draft = self._store.draft()
        try:
            with tempfile.TemporaryFile() as words:
                code = self._run(task, draft, words.fileno(), is_urgent=is_urgent)
                words.seek(0, os.SEEK_END)
                words.seek(max(0, words.tell() - _LAST_WORDS))
                said = words.read().decode("utf-8", "replace").strip().splitlines()
            if code == 0:
                self._store.keep(draft, task.key)
                return None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if code is None:
            minutes = self._longest_s / 60
            return TaskState(
                "failed",
                f"It was given up after {minutes:,.0f} minutes.",
                "profkit analyze takes as long as it needs.",
            )
        if code < 0:
            hint = "Signal 9 is often the system's, when memory runs out."
            return TaskState("failed", f"Its process was ended by signal {-code}.", hint)
        last = said[-1] if said else "it said nothing"
        return TaskState(
            "failed",
            f"Its process ended with {code}: {last}.",
            "profkit analyze on the file says more.",
        )

    def _run(self, task: Task, draft: Path, words: int, *, is_urgent: bool) -> int | None:
        """Run the worker and return how it ended, or None if it took too long."""
        ours = (str(Path(folder).absolute()) for folder in sys.path if folder)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(ours)}
        process = subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
            [sys.executable, "-m", self._worker, str(draft), *task.arguments],
            stdin=subprocess.PIPE,  # it ends when this side is gone, however that happens
            stdout=subprocess.DEVNULL,
            stderr=words,
            cwd=draft,  # -m looks into the current folder first: it is empty, and ours
            env=environment,
        )
        with process:
            if not is_urgent:
                with contextlib.suppress(OSError, AttributeError):  # Windows knows no niceness
                    os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            with self._changed:
                self._running.add(process)
                if self._closed:
                    process.kill()
            try:
                return process.wait(self._longest_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return None
            finally:
                with self._changed:
                    self._running.discard(process)
