"""What has grown between two scans of Python's objects: containers, large objects, their holders.

They are compared by address: what is kept of a scan are the lengths of containers and the bytes of
large objects, and no object.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.holders.containers import limit_of
from profkit.capture.memory.monitor.host_objects import (
    EarlierObjects,
    HostObjectScan,
    SizedContainer,
)
from profkit.capture.memory.monitor.newest_entries import (
    MeasuredEntries,
    find_library_object,
    find_view,
    measure_entries,
)
from profkit.capture.memory.monitor.object_sizes import TypeTotals
from profkit.capture.source.user_code import UserCode
from profkit.model.events import Int64s
from profkit.model.live_memory import Chain, TensorShape

MAX_CHAINS: Final = 3
"""Chains that are reported: to cut one of several references frees nothing."""
_MAX_MEASURED: Final = 16
"""Containers that are measured, those with the most new entries first."""
_MAX_HOLDERS: Final = 4
"""Measured containers and objects whose holders are searched, the most bytes first."""
_N_EXAMPLES: Final = 3
"""Of many containers that grow alike, those whose holders are searched."""
_HOLDER_SEARCH_S: Final = 1.0
"""CPU seconds of a search for holders; there are a few in a run."""
_MIN_ENTRIES_PER_STEP: Final = 0.1
"""Entries that a container gains at least: one in ten steps."""


class View(NamedTuple):
    """An array that is a view of another one, whose bytes it retains."""

    shape: TensorShape
    storage_bytes: int


class GrowingHolder(NamedTuple):
    """A container that grows, or an object that was replaced by a larger one.

    Attributes:
        per_step: Bytes per step, with everything in it.
        chains: The reference chains to it.
        limit_bytes: What it takes once it is full; None without a limit.
        view: Its newest entry if that is a view.
        owner: Type of an object of a library in its newest entry; empty without one.
        entry_bytes: Mean bytes of an entry.
        by_type: What has come, by type.
    """

    per_step: float
    chains: tuple[Chain, ...]
    limit_bytes: float | None = None
    view: View | None = None
    owner: str = ""
    entry_bytes: float = 0.0
    by_type: Mapping[str, TypeTotals] = MappingProxyType({})

    def with_chains(self, chains: tuple[Chain, ...]) -> "GrowingHolder":
        """Return the holder with the chains to it, and the limit that the program's source sets."""
        limits = {chain.container_limit for chain in chains}
        limit = next(iter(limits)) if len(limits) == 1 else None
        if self.limit_bytes is not None or limit is None:
            return self._replace(chains=chains)
        return self._replace(chains=chains, limit_bytes=self.entry_bytes * limit)


class HolderTracker:
    """Compares what each scan has found with the scan before.

    Attributes:
        earlier: The objects of the first scan, of which a part is searched.
    """

    def __init__(self) -> None:
        self._user_code = UserCode()
        self.earlier: EarlierObjects | None = None
        self._containers = _Lengths.of([])
        self._large: dict[str, dict[int, int]] = {}

    @property
    def own_arrays(self) -> tuple[Int64s, ...]:
        """Return the arrays in which the lengths of containers, and earlier objects, are kept."""
        return self._containers if self.earlier is None else (*self._containers, self.earlier.ids)

    def find(self, objects: HostObjectScan, n_steps: int) -> list[GrowingHolder]:
        """Find the holders of what has grown since the scan before, the most bytes first.

        The list of all containers is emptied: entries that are containers would seem to be shared.

        Args:
            n_steps: Steps since that scan; 0 for the first one.
        """
        lengths = _Lengths.of(objects.containers)
        added = lengths.added_since(self._containers)

        # The arrays of the scan before are as large as any: nobody in the program holds them.
        own_ids = set(map(id, self.own_arrays))
        large = [sized for sized in objects.large if id(sized.thing) not in own_ids]
        large_before, self._large = self._large, _by_type_and_id(large)
        self._containers, self.earlier = lengths, objects.earlier
        if not n_steps:
            return []

        targets, rates = _find_replaced(large, large_before, n_steps)
        held = [GrowingHolder(rate, ()) for rate in rates]
        grown = np.flatnonzero(added >= _MIN_ENTRIES_PER_STEP * n_steps)
        grown = grown[np.argsort(-added[grown], kind="stable")]
        n_added = added[grown].tolist()
        grown_containers = [objects.containers[index].thing for index in grown.tolist()]
        objects.containers.clear()

        measured = list(zip(grown_containers, n_added, strict=True))[:_MAX_MEASURED]
        entries = [measure_entries(container, n) for container, n in measured]
        held += [
            self._describe(container, of_one, n, n_steps)
            for (container, n), of_one in zip(measured, entries, strict=True)
        ]
        targets += [container for container, _ in measured]

        order = sorted(range(len(held)), key=lambda n: -held[n].per_step)[:_MAX_HOLDERS]
        held, targets = [held[n] for n in order], [targets[n] for n in order]

        # Of many containers that grow alike each is small, but all of them may have one name.
        common = None
        if len(grown) > _MAX_MEASURED:
            every = max(1, len(grown_containers) // _N_EXAMPLES)
            targets += grown_containers[::every][:_N_EXAMPLES]
            mean_bytes = float(np.mean([of_one.mean_bytes for of_one in entries]))
            common = GrowingHolder(mean_bytes * sum(n_added) / n_steps, ())
        if not targets:
            return []

        # What the scan refers to is not held by the program.
        skip = {id(objects.large), id(large), id(self.__dict__), *map(id, objects.large)}
        skip |= {id(targets), id(grown_containers), id(measured), *map(id, measured)}
        chains = holder_chains.find_chains(
            targets, skip=skip, limit=MAX_CHAINS, budget_s=_HOLDER_SEARCH_S
        )
        holders = [holder.with_chains(named) for holder, named in zip(held, chains, strict=False)]
        if common is not None:
            holders.append(common._replace(chains=_common(chains[len(held) :])))
        return sorted((holder for holder in holders if holder.chains), key=lambda h: -h.per_step)

    def _describe(
        self, container: object, entries: MeasuredEntries, n_added: int, n_steps: int
    ) -> GrowingHolder:
        """Describe a container that has grown, without the chains to it."""
        limit, entry_bytes = limit_of(container), entries.mean_bytes
        return GrowingHolder(
            entry_bytes * n_added / n_steps,
            (),
            None if limit is None else entry_bytes * limit,
            _view_of(container),
            find_library_object(container, self._user_code.is_user_file),
            entry_bytes,
            entries.by_type,
        )


class _Lengths(NamedTuple):
    """The lengths of containers, by address."""

    ids: Int64s
    lengths: Int64s

    @classmethod
    def of(cls, containers: list[SizedContainer]) -> "_Lengths":
        n = len(containers)
        return cls(
            np.fromiter((id(sized.thing) for sized in containers), np.int64, n),
            np.fromiter((sized.length for sized in containers), np.int64, n),
        )

    def added_since(self, before: "_Lengths") -> Int64s:
        """Return the entries added to each container; 0 for one that was not known."""
        if not len(before.ids):
            return np.zeros(len(self.ids), np.int64)
        order = np.argsort(before.ids)
        place = np.minimum(np.searchsorted(before.ids[order], self.ids), len(order) - 1)
        is_known = before.ids[order][place] == self.ids
        return np.where(is_known, self.lengths - before.lengths[order][place], 0)


def _view_of(container: object) -> View | None:
    """Return the newest entry of a container if it is a view."""
    array = find_view(container)
    if array is None or array.base is None:
        return None
    shape = TensorShape(str(array.dtype), array.shape, array.itemsize)
    return View(shape, int(array.base.nbytes))


def _by_type_and_id(large: list[SizedContainer]) -> dict[str, dict[int, int]]:
    """Return the bytes of objects by their type and id."""
    sizes: dict[str, dict[int, int]] = {}
    for sized in large:
        sizes.setdefault(sized.type, {})[id(sized.thing)] = sized.bytes
    return sizes


def _find_replaced(
    large: list[SizedContainer], before: dict[str, dict[int, int]], n_steps: int
) -> tuple[list[object], list[float]]:
    """Find large objects that have grown, or replaced smaller ones, and their growth per step.

    Of each type those that have not changed are left out. The others are compared by rank.
    """
    things: list[object] = []
    rates: list[float] = []
    for name in {sized.type for sized in large}:
        of_type = [sized for sized in large if sized.type == name]
        old = before.get(name, {})
        new = [sized for sized in of_type if old.get(id(sized.thing)) != sized.bytes]
        unchanged = {id(sized.thing) for sized in large if old.get(id(sized.thing)) == sized.bytes}
        gone = sorted((size for key, size in old.items() if key not in unchanged), reverse=True)

        # Without a predecessor it is another object, not a larger one.
        for sized, size in zip(new, gone, strict=False):
            if sized.bytes > size:
                things.append(sized.thing)
                rates.append((sized.bytes - size) / n_steps)
    return things, rates


def _common(chains: list[tuple[Chain, ...]]) -> tuple[Chain, ...]:
    """Return the chains whose name most of some objects have in common; empty without one."""
    n_held = Counter(
        key for of_one in chains for key in {(chain.name, chain.scope) for chain in of_one}
    )
    first = {(chain.name, chain.scope): chain for of_one in reversed(chains) for chain in of_one}
    return tuple(first[key] for key, n in n_held.most_common(MAX_CHAINS) if n > len(chains) // 2)
