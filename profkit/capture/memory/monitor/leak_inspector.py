"""Inspects growing memory: its holders, the graphs behind it, and its allocation sites.

An inspection scans all objects, so it is made only once growth is seen, and rarely repeated. It is
made while the program still runs, as the variables of its functions are gone at the end.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import Any, Final

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.holders.attributes import full_name
from profkit.capture.memory.holders.autograd_cycles import AutogradCycle
from profkit.capture.memory.holders.autograd_graphs import (
    GraphWalk,
    grad_fns_of,
    measure_graph,
    number_graphs,
    storage_of,
)
from profkit.capture.memory.holders.forward_search import count_references
from profkit.capture.memory.holders.garbage import Garbage, find_garbage
from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.example_tensors import (
    choose_examples,
    find_tensors,
    shape_of,
)
from profkit.capture.memory.monitor.live_tensors import LiveStorage, LiveTensors, TensorKind
from profkit.capture.memory.monitor.series import DeviceDtype
from profkit.capture.process.objects import no_torch_function
from profkit.capture.source.user_code import Place, Stack
from profkit.dataclass import dataclass
from profkit.model.live_memory import NUMBERED, Chain, Graph, TensorShape
from profkit.patterns import regex
from profkit.readers.process_memory import garbage_collection_paused

_MAX_GROUPS: Final = 8
"""Groups inspected, those with the most bytes first."""
_MAX_CHAINS: Final = 3
_MIN_ENLARGED: Final = 2
"""Times that a storage was resized: a buffer may be resized once for a longer batch."""
_MAX_ROOTS: Final = 16
"""Tensors whose graphs are compared, the oldest and the newest: a sum that is accumulated in place
is old, and a state that each step creates anew is young."""
_MAX_NODES: Final = 50_000
"""Nodes up to which the graphs of these tensors are compared."""
_NEARLY_ALL: Final = 0.8
"""The share of a graph's nodes from which another tensor reaches about as far."""

_NUMBER: Final = regex(r"\d+$")

SiteGroup = tuple[TensorKind, Place | None]
"""Tensors of one kind that one source line allocated; None if the line was not recorded."""


@dataclass(frozen=True)
class Inspection:
    """What an inspection has found about a group of tensors.

    Attributes:
        step: The step at whose end it was made.
        stack: Allocation site; empty if it was not recorded.
        shape: Shape and dtype of the newest tensor.
        storage_bytes: Bytes of its storage; 0 without one.
        n_enlarged: Number of tensors, if they became larger; 0 if there are more and more.
        chains: Reference chains, the holders of most tensors first.
        graph: The graph behind all of them, with the bytes it saves beyond what is reported on
            its own; None without one.
        is_hidden: Whether no Python tensor on these storages exists any more: a graph alone keeps
            them.
        cycle: What the unreachable cycle that keeps them goes through; empty if something else
            does.
        closed_at: The stack that closes an autograd reference cycle; empty if it was not recorded.
        limit: The container with a limit that holds all of them; None without one.
    """

    step: int
    stack: Stack = ()
    shape: TensorShape | None = None
    storage_bytes: int = 0
    n_enlarged: int = 0
    type: str = ""
    chains: tuple[Chain, ...] = ()
    graph: Graph | None = None
    is_hidden: bool = False
    cycle: tuple[str, ...] = ()
    closed_at: Stack = ()
    limit: Chain | None = None

    @property
    def is_in_graph(self) -> bool:
        """Tell whether only the graph behind another tensor keeps them alive."""
        return self.is_hidden or (
            bool(self.chains) and all(_is_through_graph(chain) for chain in self.chains)
        )


class LeakInspector:
    """Makes one inspection.

    Args:
        step: The step that has ended.
        since: Storages that existed at the end of this step did not grow and are skipped.
    """

    def __init__(
        self, tensors: LiveTensors, sites: AllocationSampler, step: int, since: int
    ) -> None:
        self._live_tensors = tensors
        self._sites = sites
        self._step = step
        self._since = since

    def inspect_groups(
        self,
        kinds: Collection[TensorKind],
        reallocated: Collection[DeviceDtype] = (),
        reported: Collection[SiteGroup] = (),
    ) -> dict[SiteGroup, Inspection]:
        """Inspect all tensors of some kinds that have stayed alive.

        Args:
            kinds: Kinds of which there is more and more.
            reallocated: Devices and dtypes whose enlarged tensors are inspected, however young.
            reported: Groups that are reported on their own after earlier inspections.
        """
        enlarged = self._find_enlarged(reallocated)
        members = {**self._find_members(kinds), **enlarged}
        with garbage_collection_paused():
            inspections, unheld = self._inspect(members, reported)

            # Only now does nothing here refer to the tensors: they would not be garbage before.
            garbage = find_garbage() if unheld else None
            if garbage is not None:
                for group, ids in unheld.items():
                    cycle = _find_cycle(ids, garbage, inspections[group].cycle)
                    inspections[group] = replace(inspections[group], cycle=cycle)

            # Where no operator can be recorded, larger batches look alike, but nothing keeps those.
            for group, storages in enlarged.items():
                is_resized = any(storage.n_enlarged >= _MIN_ENLARGED for _, storage in storages)
                if self._sites.can_begin() or is_resized or _is_state(inspections[group].chains):
                    inspections[group] = replace(inspections[group], n_enlarged=len(storages))
                else:
                    del inspections[group]
            return inspections

    def _inspect(
        self,
        members: dict[SiteGroup, list[tuple[int, LiveStorage]]],
        reported: Collection[SiteGroup],
    ) -> tuple[dict[SiteGroup, Inspection], dict[SiteGroup, set[int]]]:
        """Inspect groups of storages; return also the ids of the tensors without holder."""
        with no_torch_function():
            # Before anything here refers to them.
            n_references = count_references(
                storage.tensor
                for storages in members.values()
                for _, storage in storages
                if storage.tensor is not None
            )

            tensor_on = find_tensors(members.values())
            chosen = {
                group: choose_examples(storages, tensor_on) for group, storages in members.items()
            }
            targets = [tensor for examples in chosen.values() for tensor in examples]
            skip = {id(tensor_on), id(targets), id(chosen), *map(id, chosen.values())}

            is_known = all(id(target) in n_references for target in targets)
            holdings = iter(
                holder_chains.find_holdings(
                    targets,
                    skip=skip,
                    limit=_MAX_CHAINS,
                    n_references=n_references if is_known else None,
                )
            )

            inspections: dict[SiteGroup, Inspection] = {}
            unheld = {}
            for group, examples in chosen.items():
                held_by = [holding for _, holding in zip(examples, holdings, strict=False)]
                chains = _merge_chains([holding.chains for holding in held_by])
                described = self._describe(group, examples, chains)
                limit = _find_limit([holding.chains for holding in held_by])
                inspections[group] = replace(described, limit=limit)
                if examples and not chains:
                    unheld[group] = {id(tensor) for tensor in examples}
                    cycle = next((held.cycle for held in held_by if held.cycle is not None), None)
                    inspections[group] = self._with_cycle(inspections[group], cycle)

            self._measure_graphs(inspections, members, tensor_on, reported)
            return inspections, unheld

    def _measure_graphs(
        self,
        inspections: dict[SiteGroup, Inspection],
        members: dict[SiteGroup, list[tuple[int, LiveStorage]]],
        tensor_on: Mapping[int, Any],
        reported: Collection[SiteGroup],
    ) -> None:
        """Add to inspections the graph behind each group, with what is not reported on its own."""
        outside = {group for group, inspection in inspections.items() if not inspection.is_in_graph}
        is_hidden = inspections.keys() - outside
        excluded = self._not_saved(outside.union(reported).difference(is_hidden))

        tensors_of = {
            group: [tensor_on[address] for address, _ in storages if address in tensor_on]
            for group, storages in members.items()
            if group[0].has_graph and group in outside
        }
        numbers = [0]
        if len(tensors_of) > 1:
            numbers = number_graphs([grad_fns_of(tensors) for tensors in tensors_of.values()])
        for (group, tensors), number in zip(tensors_of.items(), numbers, strict=False):
            graph = measure_graph(tensors, counted=set(excluded))
            if graph.n_nodes:
                # Those of other inspections are other ones, whatever they share.
                graph = replace(graph, number=number and number + _MAX_GROUPS * self._step)
                graph = replace(graph, n_tensors=len(tensors))
                inspections[group] = replace(inspections[group], graph=graph)

    def inspect_deepest(
        self, reported: Collection[SiteGroup]
    ) -> tuple[TensorKind, Inspection] | None:
        """Inspect the tensor with the deepest graph; None without graphs.

        Of several that reach about as far, it is the one that reaches the fewest other nodes: what
        is computed from a state that is never detached reaches all that the state does, and more.
        Earlier states reach less; they may be alive too, but only the graph keeps them.

        Args:
            reported: Groups that are reported on their own, and do not count as saved by a graph.
        """
        with garbage_collection_paused(), no_torch_function():
            roots = _oldest_and_newest(self._live_tensors.changed_roots(self._step))
            targets = self._find_deep(roots)
            if not targets:
                return None

            held_by = holder_chains.find_chains(
                targets, skip={id(roots), id(targets)}, limit=_MAX_CHAINS
            )
            is_named = [not all(map(_is_through_graph, chains)) for chains in held_by]
            chosen = is_named.index(True) if any(is_named) else 0

            deepest = targets[chosen]
            storage = self._storage_of(deepest)
            if storage is None:
                return None

            graph = measure_graph([deepest], counted=self._not_saved(reported))
            # The stack is of an in-place operation if the tensor itself is older than sampling.
            stack, type_name = self._stack_of(deepest), full_name(type(deepest))
            inspection = Inspection(
                self._step,
                stack,
                shape_of(deepest),
                storage.bytes,
                type=type_name,
                chains=held_by[chosen],
                graph=graph,
            )
            return storage.kind, inspection

    def _find_deep(self, roots: list[Any]) -> list[Any]:
        """Find tensors that may have the deepest graph, the most likely first."""
        reach = [_n_nodes_behind([tensor]) for tensor in roots]
        if max(reach, default=0) < _NEARLY_ALL * _n_nodes_behind(roots):
            # Several graphs, which belong to lasting tensors and not to variables of a step.
            storages = [self._storage_of(root) for root in roots]
            aged = [
                root
                for root, storage in zip(roots, storages, strict=True)
                if storage is not None and storage.is_aged
            ]
            if aged:
                # One is as good an example as another; prefer a known allocation site.
                return sorted(aged, key=lambda tensor: not self._stack_of(tensor))

            if None not in storages:
                # All are of this step: a longer step, as of an agent that survives longer.
                return []

        far = [index for index, n in enumerate(reach) if n >= _NEARLY_ALL * max(reach)]
        return [roots[index] for index in sorted(far, key=reach.__getitem__)]

    def _storage_of(self, tensor: Any) -> LiveStorage | None:  # noqa: ANN401
        return self._live_tensors.storage((storage_of(tensor) or (0, 0))[0])

    def _stack_of(self, tensor: Any) -> Stack:  # noqa: ANN401
        return self._sites.stack_of((storage_of(tensor) or (0, 0))[0])

    def _not_saved(self, reported: Collection[SiteGroup]) -> set[int]:
        """Return storages not counted as saved by a graph: those that did not grow or are reported.

        Of a kind that is reported, storages without a known allocation site count as reported too.
        """
        kinds = {kind for kind, _ in reported}
        return {
            address
            for address, storage in self._live_tensors.storages()
            if storage.first_step <= self._since
            or (
                storage.kind in kinds
                and (
                    (site := self._site_of(address, storage)) is None
                    or (storage.kind, site) in reported
                )
            )
        }

    def _with_cycle(self, inspection: Inspection, cycle: AutogradCycle | None) -> Inspection:
        """Return the inspection with an autograd reference cycle and the line that closes it."""
        if cycle is None:
            return inspection
        stack = () if cycle.closed_by is None else self._stack_of(cycle.closed_by)
        return replace(inspection, closed_at=stack, cycle=cycle.names)

    def _site_of(self, address: int, storage: LiveStorage) -> Place | None:
        """Return the allocation site of a storage, if all of the step it is from was sampled."""
        is_sampled = storage.first_step in self._sites.steps
        stack = self._sites.stack_of(address) if is_sampled else ()
        return stack[0] if stack else None

    def _find_members(
        self, kinds: Collection[TensorKind]
    ) -> dict[SiteGroup, list[tuple[int, LiveStorage]]]:
        """Find storages by group; if some sites of a kind are known, only those with a site.

        With a single site the rest of the kind is taken to come from there too: of the sampled
        ones perhaps only that is left which is in use just now, and not in what grows.
        """
        members: dict[SiteGroup, list[tuple[int, LiveStorage]]] = {}
        for address, storage in self._live_tensors.storages():
            if storage.kind in kinds and storage.is_aged and storage.first_step > self._since:
                site = self._site_of(address, storage)
                members.setdefault((storage.kind, site), []).append((address, storage))

        for kind in {kind for kind, site in members if site is not None}:
            without_site = members.pop((kind, None), [])
            sites = [group for group in members if group[0] == kind]
            if len(sites) == 1:
                members[sites[0]] += without_site

        largest = sorted(members, key=lambda group: -sum(s.bytes for _, s in members[group]))
        return {group: members[group] for group in largest[:_MAX_GROUPS]}

    def _find_enlarged(
        self, reallocated: Collection[DeviceDtype]
    ) -> dict[SiteGroup, list[tuple[int, LiveStorage]]]:
        """Find storages that were resized, or computed from earlier ones that were shorter.

        Others are larger than earlier ones too, but keep nothing of them: larger batches. Where
        operators cannot be recorded, it is the largest new one of each dtype.
        """
        can_record = self._sites.can_begin()
        largest: dict[DeviceDtype, int] = {}
        for _, storage in self._live_tensors.storages():
            key = storage.kind.device, storage.kind.dtype
            if storage.first_step > self._since:
                largest[key] = max(storage.bytes, largest.get(key, 0))

        members: dict[SiteGroup, list[tuple[int, LiveStorage]]] = {}
        for address, storage in self._live_tensors.storages():
            key = storage.kind.device, storage.kind.dtype
            if key in reallocated and (
                storage.n_enlarged >= _MIN_ENLARGED
                or self._sites.is_extension(address)
                or (not can_record and storage.bytes == largest.get(key))
            ):
                group = storage.kind, self._site_of(address, storage)
                members.setdefault(group, []).append((address, storage))
        return members

    def _describe(
        self, group: SiteGroup, examples: list[Any], chains: tuple[Chain, ...]
    ) -> Inspection:
        """Describe the tensors of a group by a few of them, the newest first."""
        if not examples:
            return Inspection(self._step, chains=chains, is_hidden=True)

        newest = examples[0]
        # What is older than sampling has the line of a view or of an operation in place.
        site = () if group[1] is None else (group[1],)
        stack = next(
            (traced for traced in map(self._stack_of, examples) if traced[:1] == site), site
        )

        storage = storage_of(newest)
        return Inspection(
            self._step,
            stack,
            shape_of(newest),
            0 if storage is None else storage[1],
            type=full_name(type(newest)),
            chains=chains,
        )


def _merge_chains(chains: Sequence[tuple[Chain, ...]]) -> tuple[Chain, ...]:
    """Return the chains of a group from those of its examples, each holder once.

    A holder of several examples holds the group; one of a single example, such as the variable with
    the newest tensor, may hold that alone. Ties keep the order of the examples, in which the
    program comes before libraries.
    """
    n_held = Counter(name for of_one in chains for name in set(map(_without_entries, of_one)))
    first: dict[tuple[str, ...], Chain] = {}
    for ranked in zip_longest(*chains):
        for chain in filter(None, ranked):
            first.setdefault(_without_entries(chain), chain)
    ordered = sorted(first, key=lambda name: -n_held[name])
    merged = tuple(first[name] for name in ordered[:_MAX_CHAINS])
    return _merge_numbered(merged) or merged


def _merge_numbered(chains: tuple[Chain, ...]) -> tuple[Chain, ...]:
    """Return chains that lead to attributes which differ in a number as one; empty for others."""
    stems = {_NUMBER.sub("", chain.name) for chain in chains}
    are_attributes = all(not chain.container and not chain.is_entry for chain in chains)
    if len(chains) < _MAX_CHAINS or len(stems) > 1 or not are_attributes:
        return ()
    (stem,) = stems
    is_numbered = all(len(chain.name) > len(stem) and "." in stem for chain in chains)
    return (replace(chains[0], name=stem + NUMBERED),) if is_numbered else ()


def _find_limit(chains: Sequence[tuple[Chain, ...]]) -> Chain | None:
    """Find the container with a limit that holds all examples; None if one without holds one.

    Args:
        chains: Those of each example. Shorter containers, such as a batch, are not what grows.
    """
    longest = [
        max((chain for chain in of_one if chain.container), key=_length, default=None)
        for of_one in chains
    ]
    is_limited = all(chain is not None and chain.container_limit is not None for chain in longest)
    return longest[0] if longest and is_limited else None


def _length(chain: Chain) -> int:
    return chain.container_len or 0


def _is_state(chains: Sequence[Chain]) -> bool:
    """Tell whether an attribute or a container holds an object, and not only variables."""
    return any(chain.is_entry or "." in chain.name for chain in chains)


def _without_entries(chain: Chain) -> tuple[str, ...]:
    """Return a chain's parts without keys and indices, and each link of a linked list once."""
    parts = ["[]" if part.startswith("[") else part for part in chain.parts]
    return tuple(part for part, _ in groupby(parts))


def _n_nodes_behind(tensors: Iterable[Any]) -> int:
    return GraphWalk(_MAX_NODES).count(grad_fns_of(tensors))


def _oldest_and_newest(roots: list[Any]) -> list[Any]:
    half = _MAX_ROOTS // 2
    return roots if len(roots) <= _MAX_ROOTS else roots[:half] + roots[-half:]


def _is_through_graph(chain: Chain) -> bool:
    return any(part.startswith(".grad_fn") for part in chain.parts)


def _find_cycle(ids: set[int], garbage: list[Garbage], cycle: tuple[str, ...]) -> tuple[str, ...]:
    """Find the cycle that keeps tensors without holder; empty if none is known.

    Args:
        ids: Ids of the tensors.
        cycle: The autograd reference cycle that keeps them, if one does.
    """
    of_python = next((group.cycle for group in garbage if ids & group.ids), None)
    if of_python is not None:
        return of_python
    return cycle or (garbage[0].cycle if garbage else ())
