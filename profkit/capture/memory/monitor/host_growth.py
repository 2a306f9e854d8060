"""Host memory that no tensor owns: whether it grows, of what, and in which container.

Only where what is given out grows beyond what tensors and graphs explain are Python's objects gone
through, a few times, some steps apart.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.holders.unreachable import quiet_collector
from profkit.capture.memory.monitor import host_objects
from profkit.capture.memory.monitor.tracemalloc_lines import TracemallocLines
from profkit.capture.source.user_code import Place
from profkit.index.trend import Trend, median_slope
from profkit.model.live_memory import Chain

LEAST_PER_STEP: Final = 8192.0
"""Bytes a step below which host memory is not said to grow: objects come and go all the time."""
_MIN_TAKES: Final = 2
_MOST_TAKES: Final = 4
_LEAST_EXPLAINED: Final = 0.3
"""The share of the growth that Python's objects must account for: a library's own is not told."""
_MOST_MEASURED: Final = 16
"""Containers that are measured, those with the most new entries first."""
_MOST_CONTAINERS: Final = 4
"""Of them those whose holders are looked for, the most bytes first."""
_MOST_CHAINS: Final = 3
_LEAST_ENTRIES_PER_STEP: Final = 0.25
_LEAST_OF_GROWTH: Final = 0.2
"""The share of all growth that a container must hold to be told of."""
_NOT_THE_PROGRAMS: Final = ("profkit.", "torch.", "weakref", "cell", "frame")


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
        by_line: Bytes that were made since the first step and stayed for a while, by the program's
            line, where that was asked for.
    """

    step: int
    by_type: dict[str, tuple[int, int]]
    grown: tuple[Grown, ...]
    by_line: dict[Place, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HostGrowth:
    """Host memory that grows from take to take.

    Attributes:
        type: The type that grows most.
        per_step_bytes: What is given out more, of all types.
        bytes: What is given out more over the stretch.
        n: Objects of that type that this is, at the pace of the takes.
        first_step: The first step of the stretch that grew.
        last_step: The last step of it.
        chains: Who holds the containers that grow; empty where none was found.
        place: The line that makes most of it; None where that was not asked for.
    """

    type: str
    per_step_bytes: float
    bytes: int
    n: int
    first_step: int
    last_step: int
    chains: tuple[Chain, ...]
    place: Place | None = None


class HostObjects:
    """Takes of Python's objects, some steps apart.

    Args:
        lines: Tells which lines made them.
    """

    def __init__(self, lines: TracemallocLines | None = None) -> None:
        self._lines = lines or TracemallocLines()
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
        with self._lines.paused(), quiet_collector():
            before = self._takes[-1].step if self._takes else None
            found = host_objects.survey()
            by_type = found.by_type
            for one in (self._lengths, *own):
                n, n_bytes = by_type[type(one).__name__]
                by_type[type(one).__name__] = n - 1, n_bytes - sys.getsizeof(one)
            grown = self._containers(found.containers, step - before if before else 0)
            self._takes.append(Take(step, by_type, grown, dict(self._lines.made)))
            if len(self._takes) > _MOST_TAKES:
                del self._takes[1]

    def growth(self, trend: Trend | None) -> HostGrowth | None:
        """What grew between the takes, if host memory grows for good.

        Args:
            trend: The growth of what is given out beyond tensors and graphs.
        """
        if trend is None or len(self._takes) < _MIN_TAKES:
            return None
        paces = {name: self._pace(name) for name in self._takes[-1].by_type}
        most = max(paces, key=lambda name: paces[name])
        explained = sum(pace for pace in paces.values() if pace > 0)
        if paces[most] <= 0 or explained < _LEAST_EXPLAINED * trend.per_step:
            return None
        n_steps = trend.last_step - trend.first_step
        first, last = self._takes[0], self._takes[-1]
        n = last.by_type[most][0] - first.by_type.get(most, (0, 0))[0]
        return HostGrowth(
            type=most,
            per_step_bytes=trend.per_step,
            bytes=round(trend.per_step * n_steps),
            n=max(round(n * n_steps / (last.step - first.step)), 1),
            first_step=trend.first_step,
            last_step=trend.last_step,
            chains=self._chains(explained),
            place=self._line(explained),
        )

    def _line(self, total: float) -> Place | None:
        """The line that makes most of what grows, if it makes a good part of it."""
        first, last = self._takes[0], self._takes[-1]
        grown = {
            place: (n_bytes - first.by_line.get(place, 0)) / (last.step - first.step)
            for place, n_bytes in last.by_line.items()
        }
        most = max(grown, key=lambda place: grown[place], default=None)
        return most if most is not None and grown[most] >= _LEAST_OF_GROWTH * total else None

    def _pace(self, name: str) -> float:
        """Bytes a step of one type, 0 unless it rose between all takes."""
        if name.startswith(_NOT_THE_PROGRAMS):
            return 0.0
        steps = np.array([take.step for take in self._takes])
        sizes = np.array([take.by_type.get(name, (0, 0))[1] for take in self._takes], np.float64)
        if not (np.diff(sizes) > 0).all():
            return 0.0
        return median_slope(steps, sizes)

    def _chains(self, total: float) -> tuple[Chain, ...]:
        for take in reversed(self._takes):
            large = [one for one in take.grown if one.per_step_bytes >= _LEAST_OF_GROWTH * total]
            found = [chain for one in large for chain in one.chains]
            if found:
                return tuple(found[:_MOST_CHAINS])
        return ()

    def _containers(self, every: list[host_objects.Held], n_steps: int) -> tuple[Grown, ...]:
        """Of some containers those that have grown since the take before, so many steps ago."""
        lengths: dict[int, int] = {}
        larger: list[tuple[int, host_objects.Held]] = []
        ours = {id(self._lengths), id(lengths), id(self.__dict__), id(larger), id(self._takes)}
        for held in every:
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
        own = {id(every), id(targets), id(found), id(larger), *map(id, found), *map(id, larger)}
        own |= {id(held) for held in every}
        chains = holder_chains.chains(targets, own=own, limit=_MOST_CHAINS) if targets else []
        return tuple(
            Grown(per_step, held_by)
            for (per_step, _), held_by in zip(found, chains, strict=False)
            if held_by
        )
