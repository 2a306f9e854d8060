"""Host memory growth that no tensor explains: which type of objects, in which container.

Python's objects are scanned only if heap memory grows beyond tensors and graphs: a few times, some
steps apart.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.monitor.allocation_sites import with_site
from profkit.capture.memory.monitor.host_objects import (
    SizedContainer,
    bytes_within,
    scan_host_objects,
)
from profkit.capture.memory.monitor.tracemalloc_lines import TracemallocLines
from profkit.capture.source.user_code import Place, Stack
from profkit.index.trend import Trend, median_slope
from profkit.model.live_memory import Chain, Leak
from profkit.readers.process_memory import garbage_collection_paused

MIN_BYTES_PER_STEP: Final = 8192.0
"""Least growth of host memory that is reported, in bytes per step: small objects come and go."""
_MIN_SCANS: Final = 2
_MAX_SCANS: Final = 4
_MIN_EXPLAINED: Final = 0.3
"""Share of the growth that Python's objects must explain; growth within a library is not
reported."""
_MAX_MEASURED: Final = 16
"""Containers that are measured, those with the most new entries first."""
_MAX_CONTAINERS: Final = 4
"""Measured containers whose holders are searched, the most bytes first."""
_MAX_CHAINS: Final = 3
_MIN_ENTRIES_PER_STEP: Final = 0.25
_MIN_SHARE: Final = 0.2
"""Share of the growth that a container or line must account for to be reported."""
_NOT_THE_PROGRAMS: Final = ("profkit.", "torch.", "weakref", "cell", "frame")


@dataclass(frozen=True)
class HostScan:
    """Python's objects at the end of a step.

    Attributes:
        by_type: Number and bytes by type.
        containers: Those that grew since the scan before, the most bytes per step first: bytes of
            the new entries per step, with everything in them, and the reference chains.
        by_line: Bytes allocated since the first step that stayed alive, by source line; empty
            without tracemalloc.
    """

    step: int
    by_type: dict[str, tuple[int, int]]
    containers: list[tuple[float, tuple[Chain, ...]]]
    by_line: dict[Place, int] = field(default_factory=dict)


class HostGrowthTracker:
    """Compares scans of Python's objects, some steps apart."""

    def __init__(self, lines: TracemallocLines | None = None) -> None:
        self._lines = lines or TracemallocLines()
        self._scans: list[HostScan] = []
        self._lengths: dict[int, int] = {}

    @property
    def n_scans(self) -> int:
        """Number of scans that are stored."""
        return len(self._scans)

    def scan(self, step: int, own: Iterable[object] = ()) -> None:
        """Scan all objects at the end of a step.

        Args:
            own: Containers of the monitor, which are not the program's.
        """
        with self._lines.paused(), garbage_collection_paused():
            before = self._scans[-1].step if self._scans else None
            found = scan_host_objects()
            by_type = found.by_type
            for one in (self._lengths, *own):
                n, n_bytes = by_type[type(one).__name__]
                by_type[type(one).__name__] = n - 1, n_bytes - sys.getsizeof(one)
            containers = self._growing(found.containers, step - before if before else 0)
            by_line = dict(self._lines.bytes_by_line)
            self._scans.append(HostScan(step, by_type, containers, by_line))
            if len(self._scans) > _MAX_SCANS:
                del self._scans[1]

    def leak(self, trend: Trend | None) -> Leak | None:
        """The type that grew most between the scans, with the growth of all types.

        Args:
            trend: Growth of the heap beyond tensors and graphs.
        """
        if trend is None or len(self._scans) < _MIN_SCANS:
            return None
        paces = {name: self._pace(name) for name in self._scans[-1].by_type}
        fastest = max(paces, key=paces.__getitem__)
        explained = sum(pace for pace in paces.values() if pace > 0)
        if paces[fastest] <= 0 or explained < _MIN_EXPLAINED * trend.per_step:
            return None
        n_steps = trend.last_step - trend.first_step
        first, last = self._scans[0], self._scans[-1]
        n = last.by_type[fastest][0] - first.by_type.get(fastest, (0, 0))[0]
        leak = Leak(
            kind="host",
            device="host",
            per_step_bytes=round(trend.per_step),
            bytes=round(trend.per_step * n_steps),
            n=max(round(n * n_steps / (last.step - first.step)), 1),
            first_step=trend.first_step,
            last_step=trend.last_step,
            type=fastest,
            chains=self._chains(explained),
        )
        return with_site(leak, self._site(explained))

    def _site(self, total: float) -> Stack:
        """The source line that allocates most of the growth; empty if its share is too small."""
        first, last = self._scans[0], self._scans[-1]
        paces = {
            line: (n_bytes - first.by_line.get(line, 0)) / (last.step - first.step)
            for line, n_bytes in last.by_line.items()
        }
        fastest = max(paces, key=paces.__getitem__, default=None)
        return (fastest,) if fastest is not None and paces[fastest] >= _MIN_SHARE * total else ()

    def _pace(self, name: str) -> float:
        """Bytes per step of one type; 0 unless it grew between all scans."""
        if name.startswith(_NOT_THE_PROGRAMS):
            return 0.0
        steps = np.array([scan.step for scan in self._scans])
        sizes = np.array([scan.by_type.get(name, (0, 0))[1] for scan in self._scans], np.float64)
        return median_slope(steps, sizes) if (np.diff(sizes) > 0).all() else 0.0

    def _chains(self, total: float) -> tuple[Chain, ...]:
        for scan in reversed(self._scans):
            large = [chains for pace, chains in scan.containers if pace >= _MIN_SHARE * total]
            if any(large):
                return sum(large, ())[:_MAX_CHAINS]
        return ()

    def _growing(
        self, every: list[SizedContainer], n_steps: int
    ) -> list[tuple[float, tuple[Chain, ...]]]:
        """The containers that have grown since the scan before, ``n_steps`` ago."""
        lengths: dict[int, int] = {}
        larger: list[tuple[int, SizedContainer]] = []
        ours = {id(self._lengths), id(lengths), id(self.__dict__), id(larger), id(self._scans)}
        for sized in every:
            added = sized.length - self._lengths.get(id(sized.thing), sized.length)
            lengths[id(sized.thing)] = sized.length
            if id(sized.thing) not in ours and added >= _MIN_ENTRIES_PER_STEP * n_steps > 0:
                larger.append((added, sized))
        self._lengths = lengths
        larger.sort(key=lambda one: -one[0])
        measured = []
        for added, sized in larger[:_MAX_MEASURED]:
            n_bytes = bytes_within(sized.thing) * added / sized.length
            measured.append((n_bytes / n_steps, sized.thing))
        measured.sort(key=lambda one: -one[0])
        targets = [thing for _, thing in measured[:_MAX_CONTAINERS]]
        own = {id(every), id(targets), id(measured), id(larger), *map(id, measured)}
        own |= {*map(id, larger), *map(id, every)}
        chains = holder_chains.chains(targets, own=own, limit=_MAX_CHAINS) if targets else []
        paces = [per_step for per_step, _ in measured]
        return [one for one in zip(paces, chains, strict=False) if one[1]]
