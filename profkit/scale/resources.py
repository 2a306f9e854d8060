"""Number of processes that the cores and the free memory of the machine and its cgroup allow.

Source: "Control Group v2" and "Memory Resource Controller" in the Linux kernel's documentation;
proc(5) for ``MemAvailable``, an estimate of what can be used without swapping.
"""

import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES: Final = 1 << 60
"""The first version of cgroups writes such a number for no limit."""
_USED_SHARE: Final = 0.8
"""The share of free memory that is planned with: other programs take some meanwhile."""


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for folder in _cgroup_folders(""):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def free_bytes() -> int | None:
    """Return the memory that this process may still allocate; None if it is unknown."""
    limits = [*_free_in_cgroups(), *_available()]
    return max(0, min(limits)) if limits else None


def planned_bytes() -> int | None:
    """Return the part of :func:`free_bytes` to plan with."""
    free = free_bytes()
    return None if free is None else int(_USED_SHARE * free)


def _available() -> Iterator[int]:
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) << 10
            return
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names:  # macOS: half of what there is
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_cgroups() -> Iterator[int]:
    """Yield the memory left of each limit around this process; file pages can be dropped."""
    files = {
        "": ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    for controller, (limit, usage, droppable) in files.items():
        for folder in _cgroup_folders(controller):
            most, used = _text(folder / limit), _text(folder / usage)
            if most.isdigit() and used.isdigit() and int(most) < _UNLIMITED_BYTES:
                stat = dict(
                    line.split(" ", 1)
                    for line in _text(folder / "memory.stat").splitlines()
                    if " " in line
                )
                yield int(most) - int(used) + int(stat.get(droppable, 0))


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of the cgroups around it.

    Args:
        controller: Of the first version; empty for the second.
    """
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = _CGROUPS / controller
            cgroup = root / path.lstrip("/")
            # In a container the path is often the host's path, while the root is the container's.
            yield from (
                folder for folder in (cgroup, *cgroup.parents) if folder.is_relative_to(root)
            )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


class MemoryBudget:
    """Memory that several threads share.

    Args:
        n_bytes: The memory; None for no limit.
    """

    def __init__(self, n_bytes: int | None) -> None:
        self._n_bytes = math.inf if n_bytes is None else n_bytes
        self._taken: list[int] = []
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, n_bytes: int) -> Iterator[None]:
        """Wait until there is so much, and take it during a block. A single caller never waits."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or sum(self._taken) + n_bytes <= self._n_bytes
            )
            self._taken.append(n_bytes)
        try:
            yield
        finally:
            with self._changed:
                self._taken.remove(n_bytes)
                self._changed.notify_all()


def processes_for(needs_bytes: Sequence[int], most: int | None = None) -> int:
    """Return how many calls to carry out at a time, so that the largest have room together.

    Args:
        needs_bytes: The memory that each call needs.
        most: The user's number, whatever the memory; by default at most one per core.
    """
    if most is not None:
        return max(1, min(most, len(needs_bytes)))

    planned = planned_bytes()
    largest_first = sorted(needs_bytes, reverse=True)
    fitting = sum(
        planned is None or total <= planned for total in itertools.accumulate(largest_first)
    )
    return max(1, min(n_cores(), fitting))
