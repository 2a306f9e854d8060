"""Host memory growth that no tensor explains: which type of objects, in which container.

Python's objects are scanned only if heap memory grows beyond tensors and graphs: a few times, some
steps apart. The first two scans read the lengths of containers alone, and measure the entries of
those that have grown. That is enough for most leaks, and takes half of the time.
"""

import sys
from collections.abc import Iterable
from dataclasses import field, replace
from itertools import chain
from typing import Final

import numpy as np

from profkit.capture.memory.holders.attributes import full_name
from profkit.capture.memory.monitor.allocation_sites import with_site
from profkit.capture.memory.monitor.growing_holders import (
    MAX_CHAINS,
    GrowingHolder,
    HolderTracker,
)
from profkit.capture.memory.monitor.host_objects import scan_containers, scan_host_objects
from profkit.capture.memory.monitor.native_growth import NativeSampler, NativeSite
from profkit.capture.memory.monitor.object_sizes import TypeTotals
from profkit.capture.memory.monitor.tracemalloc_lines import (
    COMPILER_LINE,
    GrowthSampler,
    TracemallocLines,
)
from profkit.capture.process.compiles import find_most_recompiled
from profkit.capture.source.user_code import Place, Stack
from profkit.dataclass import dataclass
from profkit.index.trend import Floats, Trend, median_slope
from profkit.model.capture_info import Compiled
from profkit.model.events import Int64s
from profkit.model.live_memory import Chain, Leak
from profkit.patterns import regex
from profkit.readers.process_memory import garbage_collection_paused

MIN_BYTES_PER_STEP: Final = 8192.0
"""Least growth of host memory that is reported, in bytes per step: small objects come and go."""
MIN_SCANS: Final = 2
"""Scans without which nothing is known of what grows between them."""
_MAX_SCANS: Final = 4
"""Scans that are stored: the first and the latest ones."""
_MIN_IN_CONTAINERS: Final = 0.6
"""Share of the growth that entries of containers must have, or else all objects are scanned."""
_MIN_EXPLAINED: Final = 0.3
"""Share of the growth that Python's objects must explain, or else it is a library's."""
_DEFAULT_BLOCK_BYTES: Final = 64.0
"""Taken for the mean bytes of a block until they are measured."""
MAX_BLOCK_BYTES: Final = 512.0
"""Larger blocks are C's, which has their bytes, although Python's allocator counts them too."""
MIN_MAPPED_BYTES_PER_STEP: Final = 65536.0
"""Least growth of mapped memory that is reported: allocators map a few MiB at once."""
_MIN_OF_LARGEST: Final = 0.05
"""Types that grow by less, as a share of the bytes of the one that grows most, are left out of the
mean size of blocks: most of them only vary."""
_MIN_BLOCKS_PER_STEP: Final = 8
"""With fewer new blocks their mean size matters little, and is not measured well."""
_MIN_SHARE: Final = 0.2
"""Share of the growth that a container or line must account for to be reported."""
_GUARD: Final = regex(r"(?:\d+/\d+: )?([^#\n(]*[^#\n( ])")
"""The failed guard in torch's text, without the number of the compilation and without comments."""
_MIN_OF_COMPILER: Final = 0.5
"""Share of the growth that a compiler must allocate to be its cause."""
_MIN_CACHE_BYTES: Final = 16 << 20
"""Least size of a full cache of a library that is reported: a tenth of what torch takes."""
_MIN_IN_OPERATORS: Final = 0.5
"""Share of the growth that operators must allocate, for which Python's objects are not searched."""
_MIN_RECOMPILED: Final = 0.5
"""Compilations per step from which they are the growth of which nothing else is known."""
_MAX_COMPILATIONS: Final = 64
"""Compilations that Dynamo retains."""
_FULL_SHARE: Final = 0.9
"""Share of its size from which such a cache is full."""
_ARRAY: Final = full_name(np.ndarray)
_NOT_THE_PROGRAMS: Final = ("profkit.", "torch.", "weakref", "cell", "frame")


@dataclass(frozen=True)
class HostScan:
    """Python's objects at the end of a step.

    Attributes:
        by_type: The objects by type. Of a scan of containers alone, what they have gained.
        n_blocks: Blocks of Python's allocator.
        holders: What grew since the scan before, the most bytes per step first.
        by_line: Bytes allocated since the first step that stayed alive, by source line; empty
            without tracemalloc.
    """

    step: int
    by_type: dict[str, TypeTotals]
    n_blocks: int
    holders: list[GrowingHolder]
    by_line: dict[Place, int] = field(default_factory=dict)


class HostGrowthTracker:
    """Compares scans of Python's objects, some steps apart.

    Attributes:
        growth: Traces the allocations of a few steps.
        native: Measures the heap at the lines and operators of a few steps.
        n_container_scans: Scans of containers alone.
    """

    def __init__(self, lines: TracemallocLines | None = None) -> None:
        self.growth = GrowthSampler()
        self.native = NativeSampler()
        self.n_container_scans = 0
        self._are_of_containers = False
        self._lines = lines or TracemallocLines()
        self._scans: list[HostScan] = []
        self._holders = HolderTracker()

    @property
    def is_sampling(self) -> bool:
        """Tell whether allocations are being traced or measured."""
        return bool(self.growth.next_step) or self.native.is_on

    @property
    def has_traced_growth(self) -> bool:
        """Tell whether the traced allocations grow, even if what was freed at once hides it."""
        return sum((self.growth.per_step or {}).values()) >= MIN_BYTES_PER_STEP

    def tracing_bytes(self) -> int:
        """Return the memory of the records of traced allocations."""
        return self._lines.own_bytes() + self.growth.own_bytes()

    def end(self) -> None:
        """Stop tracing and measuring."""
        self.growth.end()
        self.native.end()

    @property
    def n_scans(self) -> int:
        """Return the number of scans that are stored."""
        return len(self._scans)

    @property
    def block_bytes(self) -> float:
        """Return the mean size of the blocks of Python's allocator that growth has added.

        That allocator counts blocks and not bytes. The scans measure what is new, or a part of it
        that shows its mean. If they find little of it, the rest counts nothing.
        """
        if len(self._scans) < MIN_SCANS:
            return _DEFAULT_BLOCK_BYTES

        first, last = self._scans[0], self._scans[-1]
        n_blocks = last.n_blocks - first.n_blocks
        if n_blocks < _MIN_BLOCKS_PER_STEP * (last.step - first.step):
            return _DEFAULT_BLOCK_BYTES

        added = [
            totals.plus(first.by_type.get(name, TypeTotals()), -1)
            for name, totals in last.by_type.items()
        ]

        min_bytes = _MIN_OF_LARGEST * max((totals.bytes for totals in added), default=0)
        added = [totals for totals in added if totals.bytes > min_bytes and totals.n_blocks > 0]
        n_bytes = sum(totals.small_bytes for totals in added)
        n_measured = sum(totals.n_blocks for totals in added)

        mean = n_bytes / (n_measured if n_measured >= _MIN_EXPLAINED * n_blocks else n_blocks)
        return min(max(mean, 0.0), MAX_BLOCK_BYTES)

    @property
    def were_containers_compared(self) -> bool:
        """Tell whether containers were scanned often enough to know what they have gained."""
        return self.n_container_scans >= MIN_SCANS

    def scan_containers(self, step: int, n_own_blocks: int = 0) -> None:
        """Scan the lengths of all containers at the end of a step.

        Args:
            n_own_blocks: Blocks of Python's allocator that inspections have retained so far.
        """
        with self._lines.paused(), garbage_collection_paused():
            before = self._scans[-1].step if self._scans else None
            n_blocks = sys.getallocatedblocks() - n_own_blocks
            objects = scan_containers()

            holders = self._holders.find(objects, step - before if before else 0)
            by_type: dict[str, TypeTotals] = {}
            for name, totals in chain.from_iterable(holder.by_type.items() for holder in holders):
                by_type[name] = totals.plus(by_type.get(name, TypeTotals()))

            by_line = dict(self._lines.bytes_by_line)
            self._scans.append(HostScan(step, by_type, n_blocks, holders, by_line))
            self.n_container_scans += 1
            self._are_of_containers = True

    def have_containers_grown(self, trend: Trend | None) -> bool:
        """Tell whether the entries of the containers that were compared are most of some growth.

        Of many containers that grow alike only a few are measured: that is left to other scans.
        """
        holders = self._scans[-1].holders
        held = sum(holder.per_step for holder in holders)
        is_whole = all(holder.by_type for holder in holders)
        return trend is not None and is_whole and held >= _MIN_IN_CONTAINERS * trend.per_step

    def forget_containers(self) -> None:
        """Forget the scans of containers, which do not explain the growth."""
        if self._are_of_containers:
            self._scans.clear()
            self._are_of_containers = False

    def scan(self, step: int, own_containers: Iterable[object] = (), n_own_blocks: int = 0) -> None:
        """Scan all objects at the end of a step.

        Args:
            own_containers: Containers of the monitor, which are not the program's.
            n_own_blocks: Blocks of Python's allocator that inspections have retained so far.
        """
        self.forget_containers()
        with self._lines.paused(), garbage_collection_paused():
            before = self._scans[-1].step if self._scans else None
            n_blocks = sys.getallocatedblocks() - n_own_blocks
            objects = scan_host_objects(earlier=self._holders.earlier)

            # The lengths of all containers are two arrays of 80 KB, which the first scan has not.
            by_type = objects.by_type
            for container in (*own_containers, *self._holders.own_arrays):
                name = sys.intern(full_name(type(container)))
                totals = by_type.get(name, TypeTotals())
                by_type[name] = totals.plus(TypeTotals(1, sys.getsizeof(container)), -1)

            holders = self._holders.find(objects, step - before if before else 0)
            by_line = dict(self._lines.bytes_by_line)

            # What is stored here counts as memory of the program.
            by_type = {
                name: totals
                for name, totals in by_type.items()
                if totals.bytes >= MIN_BYTES_PER_STEP
            }
            self._scans.append(HostScan(step, by_type, n_blocks, holders, by_line))
            if len(self._scans) > _MAX_SCANS:
                del self._scans[1]

    def find_leak(self, trend: Trend | None) -> Leak | None:
        """Return the growth of the heap, with the type that grew most between the scans.

        Args:
            trend: Growth of the heap beyond tensors and graphs.

        Returns:
            Growth of a library's memory if neither the scans nor the traced allocations explain it;
            None without growth, or if there was not enough to examine it.
        """
        if trend is None:
            return None

        leak = _of_trend(trend)
        if self.is_in_operators(trend.per_step):
            return self._with_operators(replace(leak, kind="native"))
        if len(self._scans) < MIN_SCANS:
            return _find_untraced_recompilations(leak)
        return self._find_in_scans(leak, trend)

    def _find_in_scans(self, leak: Leak, trend: Trend) -> Leak | None:
        """Return growth with what the scans and the traced allocations know of it, or None."""
        recompiled = self._find_recompiled(trend)
        if recompiled is not None:
            return _of_recompilations(leak, *recompiled)

        rates = {name: self._growth_rate(name) for name in self._scans[-1].by_type}
        explained = sum(rate for rate in rates.values() if rate > 0)
        fastest = max(rates, key=rates.__getitem__)
        if rates[fastest] > 0 and explained >= _MIN_EXPLAINED * trend.per_step:
            return self._with_type(leak, fastest, explained, trend)

        traced = self._traced_per_step()
        if traced is None:
            return None
        if sum(traced.values()) >= _MIN_EXPLAINED * trend.per_step:
            # The containers that grew are known even where what is in them was not searched.
            leak = self._with_holders(leak, trend.per_step)
            return with_site(leak, self._find_site(trend.per_step))

        native = self._with_operators(replace(leak, kind="native"))
        return None if native is None else self._with_owner(native)

    def is_explained(self, trend: Trend) -> bool:
        """Tell whether it is known what grows, and a further scan would find nothing new."""
        if self.is_in_operators(trend.per_step):
            return True
        leak = self.find_leak(trend) if len(self._scans) >= MIN_SCANS else None
        return leak is not None and bool(leak.chains)

    def is_in_operators(self, per_step: float) -> bool:
        """Tell whether operators are known to allocate most of some growth per step."""
        native = self.native.growth
        return native is not None and native.in_operators >= _MIN_IN_OPERATORS * per_step

    def find_full_cache(self, heap: tuple[Int64s, Floats]) -> Leak | None:
        """Find a library's cache for each new shape that has grown much and is full by now.

        Args:
            heap: The heap beyond tensors and graphs, by step.
        """
        steps, values = heap
        native = self.native.growth
        if native is None or len(steps) < MIN_SCANS:
            return None

        grown = values[-1] - values[0]
        if grown < _MIN_CACHE_BYTES or native.new_shapes < MIN_BYTES_PER_STEP:
            return None

        # It grows slowly on where the plans of rare shapes replace smaller ones.
        is_full = values >= values[0] + _FULL_SHARE * grown
        n_steps = int(steps[is_full][0] - steps[0])
        if native.new_shapes * n_steps < _MIN_SHARE * grown:
            return None

        leak = Leak(
            kind="native",
            device="host",
            per_step_bytes=round(native.new_shapes),
            bytes=round(grown),
            n=0,
            first_step=int(steps[0]),
            last_step=int(steps[0]) + n_steps,
            type="",
        )
        cache = self._with_operators(leak)
        if cache is None or not cache.is_for_new_shapes:
            return None
        return replace(cache, per_step_bytes=round(_FULL_SHARE * grown / n_steps))

    def _with_type(self, leak: Leak, name: str, explained: float, trend: Trend) -> Leak:
        """Return growth with the type of objects that grew most, its holders and its line.

        Args:
            explained: Bytes per step by which the types grew.
        """
        first, last = self._scans[0], self._scans[-1]
        n = last.by_type[name].n - first.by_type.get(name, TypeTotals()).n
        n_steps = trend.last_step - trend.first_step
        n = max(round(n * n_steps / (last.step - first.step)), 1)

        # Of many objects a part stands for all, so that few large ones may seem to be several.
        total = min(explained, trend.per_step)
        leak = self._with_holders(replace(leak, n=n, type=name), total)
        if leak.storage_bytes and name == _ARRAY:
            # Each with the array that it retains, which is no entry.
            leak = replace(leak, n=max(round(leak.bytes / leak.storage_bytes), 1))
        # Objects that refer to each other are measured as a small part of their container.
        leak = leak if leak.chains else self._with_owner(leak, is_any=True)
        return with_site(leak, self._find_site(explained))

    def _with_owner(self, leak: Leak, *, is_any: bool = False) -> Leak:
        """Return growth with the container of a library's objects that grows, if any.

        Args:
            is_any: Whether the container may be a library's too.
        """
        for scan in reversed(self._scans):
            for holder in scan.holders:
                if not holder.owner:
                    continue
                chain = holder.chains[0]
                if (is_any or not chain.is_library) and chain.kind != "unknown":
                    leak = replace(leak, type=holder.owner, chains=holder.chains)
                    return leak if leak.stack else with_site(leak, self._find_site(0.0))
        return leak

    def _find_recompiled(self, trend: Trend) -> tuple[Compiled, int] | None:
        """Find the function whose compiled versions are the growth; None if they add little."""
        traced = self._traced_per_step() or {}
        added = sum(rate for rate in traced.values() if rate > 0)
        min_rate = _MIN_OF_COMPILER * max(added, trend.per_step)
        return find_most_recompiled() if traced.get(COMPILER_LINE, 0.0) >= min_rate else None

    def _with_operators(self, leak: Leak) -> Leak | None:
        """Return native growth with the line and the operators that allocate it.

        None if all of it is for new shapes, in operators that keep no plan for each: the allocator
        has no free block of a new size at first, and has one later.
        """
        growth = self.native.growth
        if growth is None:
            return leak

        sites = _find_main_sites(growth.by_site, _MIN_SHARE * leak.per_step_bytes)
        if not sites:
            if growth.new_shapes < _MIN_EXPLAINED * leak.per_step_bytes:
                return leak
            if sum(growth.plans.values()) < _MIN_SHARE * growth.new_shapes:
                return None
            sites = _find_main_sites(growth.plans, _MIN_SHARE * growth.new_shapes)
            leak = replace(leak, is_for_new_shapes=True)

        names = dict.fromkeys(site.operator for site in sites if site.operator)
        leak = replace(leak, operators=tuple(names))
        return with_site(leak, (sites[0].place,)) if sites else leak

    def _find_site(self, total: float) -> Stack:
        """Find the source line that allocates most of the growth; empty if its share is small."""
        rates = {line: rate for line, rate in (self._traced_per_step() or {}).items() if line[1]}
        fastest = max(rates, key=rates.__getitem__, default=None)
        return (fastest,) if fastest is not None and rates[fastest] >= _MIN_SHARE * total else ()

    def _traced_per_step(self) -> dict[Place, float] | None:
        """Return bytes per step by line, from all steps or a few; None if nothing was traced."""
        first, last = self._scans[0], self._scans[-1]
        if not last.by_line:
            return self.growth.per_step
        return {
            line: (n_bytes - first.by_line.get(line, 0)) / (last.step - first.step)
            for line, n_bytes in last.by_line.items()
        }

    def _growth_rate(self, name: str) -> float:
        """Return the bytes per step of one type; 0 unless it grew between all scans."""
        if name.startswith(_NOT_THE_PROGRAMS):
            return 0.0
        steps = np.array([scan.step for scan in self._scans])
        sizes = np.array(
            [scan.by_type.get(name, TypeTotals()).bytes for scan in self._scans], np.float64
        )
        return median_slope(steps, sizes) if (np.diff(sizes) > 0).all() else 0.0

    def _with_holders(self, leak: Leak, total: float) -> Leak:
        """Return a leak with the holders of most of it, as the latest scan that knows them."""
        for scan in reversed(self._scans):
            large = [holder for holder in scan.holders if holder.per_step >= _MIN_SHARE * total]
            if not large:
                continue

            limits = [holder.limit_bytes for holder in large if holder.limit_bytes is not None]
            is_limited = len(limits) == len(large)
            view = large[0].view
            return replace(
                leak,
                chains=tuple(chain for holder in large for chain in holder.chains)[:MAX_CHAINS],
                limit_bytes=round(sum(limits)) if is_limited else None,
                shape=None if view is None else view.shape,
                storage_bytes=None if view is None else view.storage_bytes,
            )
        return leak


def mapped_leak(trend: Trend) -> Leak:
    """Return growth of memory that was mapped beside C's heap, which no Python object has."""
    return replace(_of_trend(trend), kind="native", is_mapped=True)


def _of_trend(trend: Trend) -> Leak:
    """Return growth of the host's memory of which nothing more is known."""
    return Leak(
        kind="host",
        device="host",
        per_step_bytes=round(trend.per_step),
        bytes=round(trend.per_step * (trend.last_step - trend.first_step)),
        n=0,
        first_step=trend.first_step,
        last_step=trend.last_step,
        type="",
    )


def _find_main_sites(rates: dict[NativeSite, float], min_rate: float) -> list[NativeSite]:
    """Find the sites that allocate at least so many bytes per step, the most first."""
    sites = [site for site, rate in rates.items() if rate >= max(min_rate, 1.0)]
    return sorted(sites, key=lambda site: -rates[site])


def _find_untraced_recompilations(leak: Leak) -> Leak | None:
    """Return growth by recompilations if they come with most steps, else None.

    In a short run nothing else is known, and each of them leaves hundreds of kilobytes of code.
    """
    recompiled = find_most_recompiled()
    if recompiled is None:
        return None
    n_expected = min(leak.last_step - leak.first_step, _MAX_COMPILATIONS)
    is_often = recompiled[1] >= _MIN_RECOMPILED * n_expected
    return _of_recompilations(leak, *recompiled) if is_often else None


def _of_recompilations(leak: Leak, compiled: Compiled, n: int) -> Leak:
    """Return growth by the versions of a compiled function, with the call that compiles it."""
    name = compiled.code[2]
    guard = _GUARD.match(compiled.reason)
    holder = Chain(
        kind="cache",
        parts=("torch._dynamo", f".cache of {name}"),
        name=f"compiled versions of {name}",
        scope=f" (the latest because of `{guard[1]}`)" if guard else "",
        is_library=True,
    )
    leak = replace(leak, n=n, type="code", chains=(holder,))
    return with_site(leak, (compiled.caller or compiled.code,))
