"""Host memory that no tensor owns: whether it grows, of what, and in which container.

The allocator of C says at once how much it has given out; resident memory would not do, since
what the program frees stays resident and is used again unseen. Only where that grows beyond what
tensors and graphs explain are Python's objects gone through, a few times, some steps apart.

Source: ``mallinfo2(3)``; ``sys.getallocatedblocks``.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.capture.memory import holders, host_objects
from profkit.capture.memory.unreachable import quiet_collector
from profkit.index.trend import median_slope
from profkit.model.live import Chain

LEAST_PER_STEP: Final = 8192.0
"""Bytes a step below which host memory is not said to grow: objects come and go all the time."""
_BYTES_A_BLOCK: Final = 64
"""Of Python's own allocator, which says only how many blocks it has given out, of 16 to 512."""
_MIN_TAKES: Final = 3
_MOST_TAKES: Final = 8
_LEAST_PACE: Final = 0.4
"""Between two takes a type grows at least at this share of its median pace."""
_MOST_MEASURED: Final = 16
"""Containers that are measured, those with the most new entries first."""
_MOST_CONTAINERS: Final = 4
"""Of them those whose holders are looked for, the most bytes first."""
_MOST_CHAINS: Final = 3
_LEAST_ENTRIES_PER_STEP: Final = 0.25
_LEAST_OF_GROWTH: Final = 0.2
"""The share of all growth that a container must hold to be told of."""
_NOT_THE_PROGRAMS: Final = ("profkit.", "torch.", "weakref", "cell", "frame")


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


class Heap:
    """Asks the allocators how many bytes are given out."""

    def __init__(self) -> None:
        self._ask: Callable[[], _Mallinfo] | None = None
        with contextlib.suppress(OSError, AttributeError):
            ask = ctypes.CDLL(None).mallinfo2
            ask.restype = _Mallinfo
            self._ask = ask

    def read(self) -> int | None:
        """Bytes given out by C's allocator and Python's; None where C's does not tell."""
        if self._ask is None:
            return None
        told = self._ask()
        return int(told.uordblks + told.hblkhd) + _BYTES_A_BLOCK * sys.getallocatedblocks()


@dataclass(frozen=True)
class Grown:
    """A container that has more entries than at the take before.

    Attributes:
        per_step_bytes: What its new entries take, with all that is within them.
        chains: Who holds it.
    """

    per_step_bytes: float
    chains: tuple[Chain, ...]


@dataclass(frozen=True)
class Take:
    """What Python's objects were at one moment.

    Attributes:
        step: The step that had ended.
        by_type: Number and bytes by type.
        grown: Containers that grew since the take before, the most bytes a step first.
    """

    step: int
    by_type: dict[str, tuple[int, int]]
    grown: tuple[Grown, ...]


@dataclass(frozen=True)
class HostGrowth:
    """Host memory that grows from take to take.

    Attributes:
        type: The type that grows most.
        per_step_bytes: What all types grow by.
        bytes: What there is of that type at the last take beyond the first.
        n: How many objects of it, likewise.
        first_step: The first take's step.
        last_step: The last one's.
        chains: Who holds the containers that grow; empty where none was found.
    """

    type: str
    per_step_bytes: float
    bytes: int
    n: int
    first_step: int
    last_step: int
    chains: tuple[Chain, ...]


class HostObjects:
    """Takes of Python's objects, some steps apart."""

    def __init__(self) -> None:
        self._takes: list[Take] = []
        self._lengths: dict[int, int] = {}

    @property
    def n_takes(self) -> int:
        """How many takes there are."""
        return len(self._takes)

    def take(self, step: int, own: Iterable[object] = ()) -> None:
        """Go through all objects.

        Args:
            step: The step that has ended.
            own: Containers of the watcher's, which are not the program's to account for.
        """
        with quiet_collector():
            before = self._takes[-1].step if self._takes else None
            by_type = host_objects.by_type()
            for one in (self._lengths, *own):
                n, n_bytes = by_type[type(one).__name__]
                by_type[type(one).__name__] = n - 1, n_bytes - sys.getsizeof(one)
            grown = self._containers(step - before if before is not None else 0)
            self._takes.append(Take(step, by_type, grown))
            if len(self._takes) > _MOST_TAKES:
                del self._takes[1]

    def growth(self) -> HostGrowth | None:
        """What grew from each take to the next at about the same pace, or None."""
        if len(self._takes) < _MIN_TAKES:
            return None
        paces = {name: self._pace(name) for name in self._takes[-1].by_type}
        rising = {name: pace for name, pace in paces.items() if pace > 0}
        total = sum(rising.values())
        if total < LEAST_PER_STEP:
            return None
        most = max(rising, key=lambda name: rising[name])
        first, last = self._takes[0], self._takes[-1]
        n, n_bytes = last.by_type[most]
        n_before, bytes_before = first.by_type.get(most, (0, 0))
        return HostGrowth(
            type=most,
            per_step_bytes=total,
            bytes=n_bytes - bytes_before,
            n=max(n - n_before, 1),
            first_step=first.step,
            last_step=last.step,
            chains=self._chains(total),
        )

    def _pace(self, name: str) -> float:
        """Bytes a step of one type, 0 unless it rose between all takes and did not slow down."""
        if name.startswith(_NOT_THE_PROGRAMS):
            return 0.0
        steps = np.array([take.step for take in self._takes])
        sizes = np.array([take.by_type.get(name, (0, 0))[1] for take in self._takes], np.float64)
        paces = np.diff(sizes) / np.diff(steps)
        if paces.min() <= 0 or paces.min() < _LEAST_PACE * np.median(paces):
            return 0.0
        return median_slope(steps, sizes)

    def _chains(self, total: float) -> tuple[Chain, ...]:
        for take in reversed(self._takes):
            large = [one for one in take.grown if one.per_step_bytes >= _LEAST_OF_GROWTH * total]
            found = [chain for one in large for chain in one.chains]
            if found:
                return tuple(found[:_MOST_CHAINS])
        return ()

    def _containers(self, n_steps: int) -> tuple[Grown, ...]:
        """Containers that have grown since the take before, which is so many steps ago."""
        lengths: dict[int, int] = {}
        larger: list[tuple[int, host_objects.Held]] = []
        ours = {id(self._lengths), id(lengths), id(self.__dict__), id(larger), id(self._takes)}
        for held in host_objects.containers():
            added = held.length - self._lengths.get(id(held.thing), held.length)
            lengths[id(held.thing)] = held.length
            if id(held.thing) not in ours and added >= _LEAST_ENTRIES_PER_STEP * n_steps > 0:
                larger.append((added, held))
        self._lengths = lengths
        larger.sort(key=lambda one: -one[0])
        found = []
        for added, held in larger[:_MOST_MEASURED]:
            n_bytes = host_objects.bytes_within(held.thing) * added / held.length
            found.append((n_bytes / n_steps, held.thing))
        found.sort(key=lambda one: -one[0])
        targets = [thing for _, thing in found[:_MOST_CONTAINERS]]
        own = {id(targets), id(found), id(larger), *map(id, found), *map(id, larger)}
        own |= {id(held) for _, held in larger}
        chains = holders.chains(targets, own=own, limit=_MOST_CHAINS) if targets else []
        return tuple(
            Grown(per_step, held_by)
            for (per_step, _), held_by in zip(found, chains, strict=False)
            if held_by
        )
