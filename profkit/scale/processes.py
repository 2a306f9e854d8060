"""Carries out calls in processes of this machine."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final

from profkit.errors import LostProcessError, ProfkitError
from profkit.readers import child_process

_WORKER: Final = "from profkit.scale.worker import main; main()"


class WorkerProcess:
    """A process that carries out one call at a time.

    Args:
        function: As ``module:name``; it takes one argument. Both it and the result are pickled.
    """

    def __init__(self, function: str) -> None:
        # A session of its own: Ctrl-C ends the program, and the program this process with its
        # children.
        self._process = child_process.start(
            _WORKER, function, stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def call(self, item: object) -> Any:  # noqa: ANN401  (what the function returns)
        """Return the result of a call, or the error that it raised.

        A process that dies is an error too.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ValueError

        try:
            pickle.dump(item, stdin, pickle.HIGHEST_PROTOCOL)
            stdin.flush()
            return pickle.load(stdout)  # noqa: S301  (from a process that we started)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.end()
            return _lost(self._process.returncode)

    def end(self) -> None:
        """Kill the process and what it has started."""
        self.kill()
        # Leaving the block closes the pipes and waits for the end.
        with self._process:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def kill(self) -> None:
        """Kill the process without waiting for its end."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()


def _lost(code: int) -> LostProcessError:
    """Return the error of a process that ended by itself."""
    if code >= 0:
        return LostProcessError(f"The process that read it ended with code {code}.")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    hint = "Often memory ran out." if name == "SIGKILL" else ""
    return LostProcessError(f"The process that read it was killed by {name}.", hint)


def can_start() -> bool:
    """Return whether processes can be started; not if Python is embedded in another program."""
    return bool(sys.executable)


def call_in_processes(
    function: str, items: Sequence[object], n_processes: int
) -> Generator[tuple[int, Any], None, None]:
    """Call a function for each item, in processes that carry out one call at a time.

    A call whose process dies is repeated, once, when all others are finished: it may have lacked
    memory.

    Args:
        function: As ``module:name``.
        items: They are begun in this order.

    Yields:
        The index of an item, and what the function returned for it, or the error that it raised.
    """
    pool = _Pool(function, items, n_processes)
    lost: list[int] = []

    try:
        for _ in items:
            index, result = pool.next()
            if isinstance(result, LostProcessError):
                lost.append(index)
            else:
                yield index, result

        pool.end()
        # Alone, the call has the memory that the others took.
        for index in lost:
            retry = _Pool(function, [items[index]], 1)
            try:
                _, result = retry.next()
            finally:
                retry.end()
            yield index, result
    finally:
        pool.end()


class _Pool:
    """Threads with a process each."""

    def __init__(self, function: str, items: Sequence[object], n_processes: int) -> None:
        self._function, self._items = function, items
        self._waiting = deque(range(len(items)))
        self._results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: set[WorkerProcess] = set()
        self._ended = False
        self._threads = [
            threading.Thread(target=self._work, name="profkit pool", daemon=True)
            for _ in range(min(n_processes, len(items)))
        ]
        for thread in self._threads:
            thread.start()

    def next(self) -> tuple[int, Any]:
        """Wait for the next result; with a timeout, since Windows interrupts no wait."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._results.get(timeout=1)

    def end(self) -> None:
        """Kill the processes and end the threads."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.kill()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        process: WorkerProcess | None = None
        # The deque is empty: other threads have taken the last items.
        with contextlib.suppress(IndexError):
            while True:
                index = self._waiting.popleft()
                if process is None or not process.is_alive:
                    process = self._start(process)
                if process is None:
                    return
                self._results.put((index, _call(process, self._items[index])))
        if process is not None:
            process.end()

    def _start(self, dead: WorkerProcess | None) -> WorkerProcess | None:
        """Start a process in place of one that died; None after the end."""
        with self._lock:
            if dead is not None:
                self._running.discard(dead)
            if self._ended:
                return None
            process = WorkerProcess(self._function)
            self._running.add(process)
            return process


def _call(process: WorkerProcess, item: object) -> Any:  # noqa: ANN401  (what the function returns)
    try:
        return process.call(item)
    except Exception as error:  # noqa: BLE001  (whoever waits for a result gets one)
        return ProfkitError(f"{type(error).__name__}: {error}")
