"""Processor time of this process, of one thread, and of child processes, between two moments."""

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.capture_info import CpuTime

_THREADS: Final = Path("/proc/self/task")
_CHILDREN: Final = Path("/proc/thread-self/children")
_SCHEDULING: Final = "/proc/thread-self/schedstat"
_SCHEDULING_OF_MAIN: Final = "/proc/self/schedstat"
_CPU_FIELDS: Final = slice(11, 15)
"""``utime``, ``stime``, ``cutime`` and ``cstime`` after the name in ``/proc/[pid]/stat``."""


@dataclass(frozen=True)
class UsedTime:
    """Processor time between two moments, as in :class:`~profkit.model.capture_info.CpuTime`.

    Attributes:
        threads_ns: The time of each other thread by its id; None where the system does not tell.
    """

    window_ns: int
    thread_ns: int
    process_ns: int
    delayed_ns: int | None
    children_ns: int | None
    threads_ns: dict[int, int] | None

    def __add__(self, other: "UsedTime") -> "UsedTime":
        threads_ns = None
        if self.threads_ns is not None and other.threads_ns is not None:
            threads_ns = dict(Counter(self.threads_ns) + Counter(other.threads_ns))
        return UsedTime(
            self.window_ns + other.window_ns,
            self.thread_ns + other.thread_ns,
            self.process_ns + other.process_ns,
            _add(self.delayed_ns, other.delayed_ns),
            _add(self.children_ns, other.children_ns),
            threads_ns,
        )

    def describe(self) -> CpuTime:
        """Return what a recording says of it."""
        threads_ns = self.threads_ns
        others_ns = None if threads_ns is None else sorted(threads_ns.values(), reverse=True)
        return CpuTime(
            self.window_ns,
            self.thread_ns,
            self.process_ns,
            self.delayed_ns,
            self.children_ns,
            None if others_ns is None else tuple(others_ns),
        )


def _add(one_ns: int | None, other_ns: int | None) -> int | None:
    return None if one_ns is None or other_ns is None else one_ns + other_ns


class CpuClock:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._children = _read_children_ns()
        self._threads = _read_threads_ns()
        self._ended_ns = _read_ended_children_ns()
        self._process_ns = time.process_time_ns()
        self._thread_ns = time.thread_time_ns()
        self._delayed_ns = _read_delayed_ns()
        self._began_ns = time.perf_counter_ns()

    def read(self) -> CpuTime | None:
        """Return the processor time since then; None in another thread than that of the clock."""
        used = self.measure()
        return None if used is None else used.describe()

    def measure(self) -> UsedTime | None:
        """Return the processor time since then, of each thread by its id; None as :meth:`read`."""
        if threading.get_ident() != self._thread:
            return None

        window_ns = time.perf_counter_ns() - self._began_ns
        thread_ns = time.thread_time_ns() - self._thread_ns
        delayed_ns = _read_delayed_ns()
        if delayed_ns is not None:
            # The kernel counts a delay when it ends: this one may have begun before.
            delayed_ns = min(delayed_ns - (self._delayed_ns or 0), max(0, window_ns - thread_ns))

        process_ns = time.process_time_ns() - self._process_ns
        now, ended_ns = _read_children_ns(), _read_ended_children_ns()
        children_ns = None
        if now is not None and self._children is not None and ended_ns is not None:
            # What a child used that has ended and was waited for counts among the ended ones.
            used_ns = ended_ns - (self._ended_ns or 0)
            used_ns += sum(now.values()) - sum(self._children.values())
            children_ns = max(0, used_ns)

        threads_ns = self._read_other_threads_ns()
        return UsedTime(window_ns, thread_ns, process_ns, delayed_ns, children_ns, threads_ns)

    def _read_other_threads_ns(self) -> dict[int, int] | None:
        now = _read_threads_ns()
        if now is None or self._threads is None:
            return None

        now.pop(threading.get_native_id(), None)
        used_ns = {thread: ran_ns - self._threads.get(thread, 0) for thread, ran_ns in now.items()}
        return {thread: ns for thread, ns in used_ns.items() if ns > 0}


def main_delayed_ns() -> int:
    """Return how long the main thread was ready to run and had no core; 0 where it is not known."""
    return _read_delayed_ns(_SCHEDULING_OF_MAIN) or 0


def main_ready_ns() -> int | None:
    """Return how long the main thread ran or was ready to run; None where it is not known."""
    times = _read_scheduling(_SCHEDULING_OF_MAIN)
    return None if times is None else sum(times)


def _read_delayed_ns(scheduling: str = _SCHEDULING) -> int | None:
    """Return how long a thread was ready to run and had no core; None where it is not known."""
    times = _read_scheduling(scheduling)
    return None if times is None else times[1]


def _read_scheduling(path: str) -> tuple[int, int] | None:
    """Return how long a thread ran, and was ready to run and had no core.

    It is read at each step: by the system's calls in 5 µs, by ``Path.read_text`` in 13.

    Source: ``/proc/[pid]/schedstat``, in the kernel's ``Documentation/scheduler/sched-stats.rst``.
    """
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            ran_ns, delayed_ns, *_ = map(int, os.read(file, 128).split())
        finally:
            os.close(file)
    except (OSError, ValueError):
        return None
    return ran_ns, delayed_ns


def _read_ended_children_ns() -> int | None:
    """Return the processor time of child processes that have ended and were waited for."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1e9)


def _read_threads_ns() -> dict[int, int] | None:
    """Return the processor time of each thread by its id; None where it is not known."""
    try:
        threads = [int(thread.name) for thread in _THREADS.iterdir()]
    except OSError:
        return None

    # A thread that ends meanwhile has no file any more.
    times = {thread: _read_scheduling(f"{_THREADS}/{thread}/schedstat") for thread in threads}
    ran_ns = {thread: times_ns[0] for thread, times_ns in times.items() if times_ns is not None}
    return ran_ns or None


def _read_children_ns() -> dict[int, int] | None:
    """Return the processor time of each running child by its id; None where it is not known.

    Source: ``/proc/[pid]/task/[tid]/children`` and ``/proc/[pid]/stat`` in proc(5).
    """
    used_ns: dict[int, int] = {}
    if not _CHILDREN.exists():
        return None

    try:
        tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        for thread in _THREADS.iterdir():
            # A thread or a child may end while this goes on.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                for pid in (thread / "children").read_text().split():
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    used_ns[int(pid)] = sum(map(int, fields[_CPU_FIELDS])) * tick_ns
    except (OSError, ValueError, AttributeError):
        return None
    return used_ns
