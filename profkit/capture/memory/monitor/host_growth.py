"""Host memory growth that no tensor explains: which type of objects, in which container.

Python's objects are scanned only if heap memory grows beyond tensors and graphs: a few times, some
steps apart.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import field, replace
from typing import Final, NamedTuple

import numpy as np

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.holders.attributes import full_name
from profkit.capture.memory.holders.containers import limit_of
from profkit.capture.memory.monitor.allocation_sites import with_site
from profkit.capture.memory.monitor.host_objects import (
    HostObjectScan,
    SizedContainer,
    TypeTotals,
    entry_bytes,
    library_object_in,
    scan_host_objects,
    view_in,
)
from profkit.capture.memory.monitor.native_growth import NativeSampler
from profkit.capture.memory.monitor.tracemalloc_lines import (
    COMPILER_LINE,
    GrowthSampler,
    TracemallocLines,
)
from profkit.capture.process.compiles import most_recompiled
from profkit.capture.source.user_code import Place, Stack, UserCode
from profkit.dataclass import dataclass
from profkit.index.trend import Trend, median_slope
from profkit.model.capture_info import Compiled
from profkit.model.events import Int64s
from profkit.model.live_memory import Chain, Leak, TensorShape
from profkit.patterns import regex
from profkit.readers.process_memory import garbage_collection_paused

MIN_BYTES_PER_STEP: Final = 8192.0
"""Least growth of host memory that is reported, in bytes per step: small objects come and go."""
_MIN_SCANS: Final = 2
_MAX_SCANS: Final = 4
_MIN_EXPLAINED: Final = 0.3
"""Share of the growth that Python's objects must explain, or else it is a library's."""
_MAX_MEASURED: Final = 16
"""Containers that are measured, those with the most new entries first."""
_MAX_HOLDERS: Final = 4
"""Measured containers and objects whose holders are searched, the most bytes first."""
_N_EXAMPLES: Final = 3
"""Of many containers that grow alike, those whose holders are searched."""
_MAX_CHAINS: Final = 3
_HOLDER_SEARCH_S: Final = 1.0
"""CPU seconds of a search for holders; there are a few in a run."""
_DEFAULT_BLOCK_BYTES: Final = 64.0
_MAX_BLOCK_BYTES: Final = 512.0
"""Larger ones are C's, which has their bytes, although Python's allocator counts them too."""
_MIN_ENTRIES_PER_STEP: Final = 0.25
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
_ARRAY: Final = full_name(np.ndarray)
_NOT_THE_PROGRAMS: Final = ("profkit.", "torch.", "weakref", "cell", "frame")


class View(NamedTuple):
    """An array that is a view of another one, whose bytes it retains."""

    shape: TensorShape
    storage_bytes: int


class Held(NamedTuple):
    """A container that grows, or an object that was replaced by a larger one.

    Attributes:
        per_step: Bytes per step, with everything in it.
        chains: The reference chains to it.
        limit_bytes: What it takes once it is full; None without a limit.
        view: Its newest entry if that is a view.
        owner: Type of an object of a library in its newest entry; empty without one.
    """

    per_step: float
    chains: tuple[Chain, ...]
    limit_bytes: float | None = None
    view: View | None = None
    owner: str = ""


@dataclass(frozen=True)
class HostScan:
    """Python's objects at the end of a step.

    Attributes:
        by_type: The objects by type.
        n_blocks: Blocks of Python's allocator.
        holders: What grew since the scan before, the most bytes per step first.
        by_line: Bytes allocated since the first step that stayed alive, by source line; empty
            without tracemalloc.
    """

    step: int
    by_type: dict[str, TypeTotals]
    n_blocks: int
    holders: list[Held]
    by_line: dict[Place, int] = field(default_factory=dict)


class HostGrowthTracker:
    """Compares scans of Python's objects, some steps apart.

    Attributes:
        growth: Traces the allocations of a few steps.
        native: Measures the heap at the lines and operators of a few steps.
    """

    def __init__(self, lines: TracemallocLines | None = None) -> None:
        self.growth = GrowthSampler()
        self.native = NativeSampler()
        self._lines = lines or TracemallocLines()
        self._scans: list[HostScan] = []
        self._user_code = UserCode()
        self._containers = _Sizes.of([])
        self._large: dict[str, dict[int, int]] = {}

    @property
    def is_sampling(self) -> bool:
        """Whether allocations are being traced or measured."""
        return bool(self.growth.next_step) or self.native.is_on

    @property
    def has_traced_growth(self) -> bool:
        """Whether the traced allocations grow, even if what was freed at once hides it."""
        return sum((self.growth.per_step or {}).values()) >= MIN_BYTES_PER_STEP

    def tracing_bytes(self) -> int:
        """Memory of the records of traced allocations."""
        return self._lines.own_bytes() + self.growth.own_bytes()

    def end(self) -> None:
        """Stop tracing and measuring."""
        self.growth.end()
        self.native.end()

    @property
    def n_scans(self) -> int:
        """Number of scans that are stored."""
        return len(self._scans)

    @property
    def block_bytes(self) -> float:
        """Mean bytes of the blocks of Python's allocator that the program's growth has added.

        That allocator counts blocks and not bytes. The scans measure what is new, or a part of it
        that shows its mean. If they find little of it, the rest counts nothing.
        """
        if len(self._scans) < _MIN_SCANS:
            return _DEFAULT_BLOCK_BYTES
        first, last = self._scans[0], self._scans[-1]
        n_blocks = last.n_blocks - first.n_blocks
        if n_blocks < _MIN_BLOCKS_PER_STEP * (last.step - first.step):
            return _DEFAULT_BLOCK_BYTES
        added = [
            totals.plus(first.by_type.get(name, TypeTotals()), -1)
            for name, totals in last.by_type.items()
        ]
        least = _MIN_OF_LARGEST * max((one.bytes for one in added), default=0)
        added = [one for one in added if one.bytes > least and one.n_blocks > 0]
        n_bytes, n_found = (
            sum(one.small_bytes for one in added),
            sum(one.n_blocks for one in added),
        )
        mean = n_bytes / (n_found if n_found >= _MIN_EXPLAINED * n_blocks else n_blocks)
        return min(max(mean, 0.0), _MAX_BLOCK_BYTES)

    def scan(self, step: int, own: Iterable[object] = (), n_own_blocks: int = 0) -> None:
        """Scan all objects at the end of a step.

        Args:
            own: Containers of the monitor, which are not the program's.
            n_own_blocks: Blocks of Python's allocator that inspections have retained so far.
        """
        with self._lines.paused(), garbage_collection_paused():
            before = self._scans[-1].step if self._scans else None
            n_blocks = sys.getallocatedblocks() - n_own_blocks
            found = scan_host_objects()
            by_type = found.by_type
            # The lengths of all containers are two arrays of 80 KB, which the first scan has not.
            for one in (*own, *self._containers):
                name = sys.intern(full_name(type(one)))
                known = by_type.get(name, TypeTotals())
                by_type[name] = known.plus(TypeTotals(1, sys.getsizeof(one)), -1)
            holders = self._holders(found, step - before if before else 0)
            by_line = dict(self._lines.bytes_by_line)
            # What is stored here counts as memory of the program.
            by_type = {
                name: one for name, one in by_type.items() if one.bytes >= MIN_BYTES_PER_STEP
            }
            scan = HostScan(step, by_type, n_blocks, holders, by_line)
            self._scans.append(scan)
            if len(self._scans) > _MAX_SCANS:
                del self._scans[1]

    def leak(self, trend: Trend | None) -> Leak | None:
        """The growth of the heap, with the type of objects that grew most between the scans.

        Args:
            trend: Growth of the heap beyond tensors and graphs.

        Returns:
            Growth of a library's memory if neither the scans nor the traced allocations explain it;
            None without growth, or if there was not enough to examine it.
        """
        if trend is None or len(self._scans) < _MIN_SCANS:
            return None
        paces = {name: self._pace(name) for name in self._scans[-1].by_type}
        fastest = max(paces, key=paces.__getitem__)
        explained = sum(pace for pace in paces.values() if pace > 0)
        n_steps = trend.last_step - trend.first_step
        leak = Leak(
            kind="host",
            device="host",
            per_step_bytes=round(trend.per_step),
            bytes=round(trend.per_step * n_steps),
            n=0,
            first_step=trend.first_step,
            last_step=trend.last_step,
            type="",
        )
        recompiled = self._recompiled(trend)
        if recompiled is not None:
            return _of_recompilations(leak, *recompiled)
        if paces[fastest] > 0 and explained >= _MIN_EXPLAINED * trend.per_step:
            first, last = self._scans[0], self._scans[-1]
            n = last.by_type[fastest].n - first.by_type.get(fastest, TypeTotals()).n
            n = max(round(n * n_steps / (last.step - first.step)), 1)
            # Of many objects a part stands for all, so that few large ones may seem to be several.
            total = min(explained, trend.per_step)
            leak = self._with_holders(replace(leak, n=n, type=fastest), total)
            if leak.storage_bytes and fastest == _ARRAY:
                # Each with the array that it retains, which is no entry.
                leak = replace(leak, n=max(round(leak.bytes / leak.storage_bytes), 1))
            return with_site(leak, self._site(explained))
        traced = self._traced_per_step()
        if traced is None:
            return None
        if sum(traced.values()) >= _MIN_EXPLAINED * trend.per_step:
            # The containers that grew are known even where what is in them was not searched.
            leak = self._with_holders(leak, trend.per_step)
            return with_site(leak, self._site(trend.per_step))
        native = self._with_operators(replace(leak, kind="native"))
        return None if native is None else self._with_owner(native)

    def _with_owner(self, leak: Leak) -> Leak:
        """Native growth with the container that grows by objects of a library, if there is one."""
        for scan in reversed(self._scans):
            for one in scan.holders:
                if one.owner and not one.chains[0].is_library and one.chains[0].kind != "unknown":
                    return replace(leak, type=one.owner, chains=one.chains)
        return leak

    def _recompiled(self, trend: Trend) -> tuple[Compiled, int] | None:
        """The function whose compiled versions are the growth; None if the compiler adds little."""
        traced = self._traced_per_step() or {}
        added = sum(pace for pace in traced.values() if pace > 0)
        least = _MIN_OF_COMPILER * max(added, trend.per_step)
        return most_recompiled() if traced.get(COMPILER_LINE, 0.0) >= least else None

    def _with_operators(self, leak: Leak) -> Leak | None:
        """Native growth with its line and operators; None if it is for shapes that are all new."""
        growth = self.native.growth
        if growth is None:
            return leak
        least = _MIN_SHARE * leak.per_step_bytes
        sites = [site for site, pace in growth.by_site.items() if pace >= least]
        sites.sort(key=lambda site: -growth.by_site[site])
        if not sites:
            is_cache = growth.new_shapes >= _MIN_EXPLAINED * leak.per_step_bytes
            return None if is_cache else leak
        names = dict.fromkeys(site.operator for site in sites if site.operator)
        return with_site(replace(leak, operators=tuple(names)), (sites[0].place,))

    def _site(self, total: float) -> Stack:
        """The source line that allocates most of the growth; empty if its share is too small."""
        paces = {line: pace for line, pace in (self._traced_per_step() or {}).items() if line[1]}
        fastest = max(paces, key=paces.__getitem__, default=None)
        return (fastest,) if fastest is not None and paces[fastest] >= _MIN_SHARE * total else ()

    def _traced_per_step(self) -> dict[Place, float] | None:
        """Bytes per step by line, from all steps or a few; None if nothing was traced."""
        first, last = self._scans[0], self._scans[-1]
        if not last.by_line:
            return self.growth.per_step
        return {
            line: (n_bytes - first.by_line.get(line, 0)) / (last.step - first.step)
            for line, n_bytes in last.by_line.items()
        }

    def _pace(self, name: str) -> float:
        """Bytes per step of one type; 0 unless it grew between all scans."""
        if name.startswith(_NOT_THE_PROGRAMS):
            return 0.0
        steps = np.array([scan.step for scan in self._scans])
        sizes = np.array(
            [scan.by_type.get(name, TypeTotals()).bytes for scan in self._scans], np.float64
        )
        return median_slope(steps, sizes) if (np.diff(sizes) > 0).all() else 0.0

    def _with_holders(self, leak: Leak, total: float) -> Leak:
        """A leak with the holders of most of it, as the latest scan that knows them has them."""
        for scan in reversed(self._scans):
            large = [one for one in scan.holders if one.per_step >= _MIN_SHARE * total]
            if not large:
                continue
            limits = [one.limit_bytes for one in large if one.limit_bytes is not None]
            is_limited = len(limits) == len(large)
            view = large[0].view
            return replace(
                leak,
                chains=tuple(chain for one in large for chain in one.chains)[:_MAX_CHAINS],
                limit_bytes=round(sum(limits)) if is_limited else None,
                shape=None if view is None else view.shape,
                storage_bytes=None if view is None else view.storage_bytes,
            )
        return leak

    def _holders(self, found: HostObjectScan, n_steps: int) -> list[Held]:
        """The holders of what has grown since the scan before, ``n_steps`` ago."""
        sizes = _Sizes.of(found.containers)
        added = sizes.added_since(self._containers)
        large_before, self._large = self._large, _by_type_and_id(found.large)
        self._containers = sizes
        if not n_steps:
            return []
        targets, paces = _replaced(found.large, large_before, n_steps)
        held = [Held(pace, ()) for pace in paces]
        grown = np.flatnonzero(added >= _MIN_ENTRIES_PER_STEP * n_steps)
        grown = grown[np.argsort(-added[grown], kind="stable")]
        measured = [
            (entry_bytes(found.containers[index].thing, int(added[index])), index)
            for index in grown[:_MAX_MEASURED].tolist()
        ]
        for per_entry, index in measured:
            targets.append(found.containers[index].thing)
            limit = limit_of(targets[-1])
            limit_bytes = None if limit is None else per_entry * limit
            per_step = per_entry * int(added[index]) / n_steps
            owner = library_object_in(targets[-1], self._user_code.is_user_file)
            held.append(Held(per_step, (), limit_bytes, _view(targets[-1]), owner))
        order = sorted(range(len(held)), key=lambda n: -held[n].per_step)[:_MAX_HOLDERS]
        held, targets = [held[n] for n in order], [targets[n] for n in order]
        common = None
        if len(grown) > _MAX_MEASURED:
            examples = grown[:: max(1, len(grown) // _N_EXAMPLES)].tolist()[:_N_EXAMPLES]
            targets += [found.containers[index].thing for index in examples]
            per_entry = float(np.mean([each for each, _ in measured]))
            common = Held(per_entry * int(added[grown].sum()) / n_steps, ())
        if not targets:
            return []
        # What the scan refers to is not held by the program.
        own = {id(found.containers), id(found.large), id(self.__dict__)}
        own |= {id(one) for each in (found.containers, found.large) for one in each}
        chains = holder_chains.chains(
            targets, own=own, limit=_MAX_CHAINS, budget_s=_HOLDER_SEARCH_S
        )
        holders = [one._replace(chains=each) for one, each in zip(held, chains, strict=False)]
        if common is not None:
            holders.append(common._replace(chains=_common(chains[len(held) :])))
        return sorted((one for one in holders if one.chains), key=lambda one: -one.per_step)


def _of_recompilations(leak: Leak, compiled: Compiled, n: int) -> Leak:
    """Growth by the versions of a compiled function, with the call that compiles it again."""
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


class _Sizes(NamedTuple):
    """The lengths of containers, by address."""

    ids: Int64s
    lengths: Int64s

    @classmethod
    def of(cls, containers: list[SizedContainer]) -> "_Sizes":
        n = len(containers)
        return cls(
            np.fromiter((id(one.thing) for one in containers), np.int64, n),
            np.fromiter((one.length for one in containers), np.int64, n),
        )

    def added_since(self, before: "_Sizes") -> Int64s:
        """Entries added to each container; 0 for those that were not known."""
        if not len(before.ids):
            return np.zeros(len(self.ids), np.int64)
        order = np.argsort(before.ids)
        place = np.minimum(np.searchsorted(before.ids[order], self.ids), len(order) - 1)
        is_known = before.ids[order][place] == self.ids
        return np.where(is_known, self.lengths - before.lengths[order][place], 0)


def _view(container: object) -> View | None:
    """The newest entry of a container if it is a view."""
    array = view_in(container)
    if array is None or array.base is None:
        return None
    shape = TensorShape(str(array.dtype), array.shape, array.itemsize)
    return View(shape, int(array.base.nbytes))


def _by_type_and_id(large: list[SizedContainer]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for one in large:
        found.setdefault(one.type, {})[id(one.thing)] = one.bytes
    return found


def _replaced(
    large: list[SizedContainer], before: dict[str, dict[int, int]], n_steps: int
) -> tuple[list[object], list[float]]:
    """Large objects that have grown, or replaced smaller ones, and their growth per step.

    Of each type those that have not changed are left out. The others are compared by rank.
    """
    things: list[object] = []
    paces: list[float] = []
    for name in {one.type for one in large}:
        old = before.get(name, {})
        new = [one for one in large if one.type == name and old.get(id(one.thing)) != one.bytes]
        same = {id(one.thing) for one in large if old.get(id(one.thing)) == one.bytes}
        gone = sorted((size for key, size in old.items() if key not in same), reverse=True)
        # Without a predecessor it is another object, not a larger one.
        for one, size in zip(new, gone, strict=False):
            if one.bytes > size:
                things.append(one.thing)
                paces.append((one.bytes - size) / n_steps)
    return things, paces


def _common(chains: list[tuple[Chain, ...]]) -> tuple[Chain, ...]:
    """The chains whose name most of some objects have in common; empty if there is none."""
    n_held = Counter(key for each in chains for key in {(one.name, one.scope) for one in each})
    first = {(one.name, one.scope): one for each in reversed(chains) for one in each}
    return tuple(first[key] for key, n in n_held.most_common(_MAX_CHAINS) if n > len(chains) // 2)
