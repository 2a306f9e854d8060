"""A closer look at what grows: who holds it, what hangs behind it, and which line made it.

It goes through all objects, so it is taken only once growth is seen, and rarely again: while the
program still runs, since the variables of its functions are gone when it has ended.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from profkit.capture.memory.holders import autograd_graphs, holder_chains
from profkit.capture.memory.holders.attributes import module_of, type_name
from profkit.capture.memory.holders.autograd_cycles import AutogradCycle
from profkit.capture.memory.holders.autograd_graphs import past_user_code
from profkit.capture.memory.holders.garbage import Garbage, waiting
from profkit.capture.memory.holders.unreachable import quiet_collector
from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.live_tensors import Entry, LiveTensors, TensorKind
from profkit.capture.memory.monitor.series import Sort
from profkit.capture.source.user_code import Place, Stack
from profkit.model.live_memory import Chain, Graph

_EXAMPLES: Final = 3
"""Objects of a group whose holders are looked for: the newest, one of the middle, the oldest."""
_MOST_GROUPS: Final = 8
"""Groups looked at, those with the most bytes first."""
_MOST_CHAINS: Final = 3
_MOST_ROOTS: Final = 16
"""Tensors whose graphs are compared, the oldest and the newest: a sum that is added to in place is
old, and a state that each step makes anew is young."""
_MOST_NODES: Final = 50_000
_ABOUT_AS_FAR: Final = 0.8

Group = tuple[TensorKind, Place | None]
"""Tensors of one kind that one line made; None where the line was not seen."""


@dataclass(frozen=True)
class Inspection:
    """What a closer look has seen of a group.

    Attributes:
        step: The step at whose end it was taken.
        stack: Where the tensors are made; empty if that was not seen.
        shape: Of the newest one.
        type: Name of its Python type.
        chains: Who holds them, who holds most of them first.
        graph: The graph behind all of them, each node once, and what it keeps beyond what is told
            of itself; None without one.
        is_hidden: Whether no tensor of Python's is on them any more: a graph alone holds them.
        cycle: What the unreachable cycle that holds them goes through; empty where something else
            holds them.
    """

    step: int
    stack: Stack = ()
    shape: str = ""
    type: str = ""
    chains: tuple[Chain, ...] = ()
    graph: Graph | None = None
    is_hidden: bool = False
    cycle: tuple[str, ...] = ()

    @property
    def is_in_graph(self) -> bool:
        """Whether only the graph behind another tensor holds them."""
        return self.is_hidden or (
            bool(self.chains) and all(_is_through_graph(chain) for chain in self.chains)
        )


class LeakInspector:
    """One closer look.

    Args:
        census: What is alive.
        births: Which lines are known.
        step: The step that has ended.
        since: What was there at the end of this step is not looked at: it did not grow.
    """

    def __init__(
        self, census: LiveTensors, births: AllocationSampler, step: int, since: int
    ) -> None:
        self._census = census
        self._births = births
        self._step = step
        self._since = since

    def groups(
        self,
        kinds: Collection[TensorKind],
        made_anew: Collection[Sort] = (),
        told: Collection[Group] = (),
    ) -> dict[Group, Inspection]:
        """Look at everything of some kinds that has stayed.

        Args:
            kinds: Kinds of which there is more and more.
            made_anew: Sorts of which the largest one is looked at, however young it is.
            told: Groups that earlier looks have told of themselves.
        """
        members = {**self._members(kinds), **self._largest(made_anew)}
        with quiet_collector():
            sights, unheld = self._held(members, told)
            # Nothing is held here any more: what is looked at is else no garbage.
            garbage = waiting() if unheld else None
            if garbage is not None:
                for group, ours in unheld.items():
                    cycle = _cycle_of(ours, garbage, sights[group].cycle)
                    sights[group] = replace(sights[group], cycle=cycle)
            return sights

    def _held(
        self, members: dict[Group, list[tuple[int, Entry]]], told: Collection[Group]
    ) -> tuple[dict[Group, Inspection], dict[Group, set[int]]]:
        """Who holds what, and the ids of the tensors that nobody holds."""
        with past_user_code():
            wanted = {address for entries in members.values() for address, _ in entries}
            found = _by_storage(self._census.tensors(), wanted)
            chosen = {group: _examples(entries, found) for group, entries in members.items()}
            targets = [tensor for examples in chosen.values() for tensor in examples]
            own = {id(found), id(targets), id(chosen), *map(id, chosen.values())}
            held = iter(holder_chains.holdings(targets, own=own, limit=_MOST_CHAINS))
            sights: dict[Group, Inspection] = {}
            unheld = {}
            for group, examples in chosen.items():
                kept = [each for _, each in zip(examples, held, strict=False)]
                chains = _of_all([each.chains for each in kept])
                sights[group] = self._sight(group, examples, chains)
                if examples and not chains:
                    unheld[group] = {id(one) for one in examples}
                    ring = next((each.ring for each in kept if each.ring is not None), None)
                    sights[group] = self._with_ring(sights[group], ring)
            now = {group for group, sight in sights.items() if not sight.is_in_graph}
            apart = self._apart(now.union(told).difference(sights.keys() - now))
            for group, entries in members.items():
                if group[0].has_graph and not sights[group].is_in_graph:
                    tensors = [found[address] for address, _ in entries if address in found]
                    graph = _graph_behind(tensors, set(apart))
                    sights[group] = replace(sights[group], graph=graph)
            return sights, unheld

    def deepest(self, told: Collection[Group]) -> tuple[TensorKind, Inspection] | None:
        """The tensor on which the deepest graph hangs, or None without graphs.

        Args:
            told: Groups that are told of themselves, and do not count as kept by a graph.

        Of several that reach about as far, the one that reaches the least beyond: what is computed
        from a state that is never detached reaches all that the state does, and more. The states
        before it reach less, and may be alive too; but the graph alone holds them.
        """
        with quiet_collector(), past_user_code():
            roots = _oldest_and_newest(self._census.risen_roots())
            targets = self._deep(roots)
            if not targets:
                return None
            held_by = holder_chains.chains(
                targets, own={id(roots), id(targets)}, limit=_MOST_CHAINS
            )
            chosen = next((place for place, held in enumerate(held_by) if _is_named(held)), 0)
            deepest = targets[chosen]
            storage = autograd_graphs.storage_of(deepest)
            entry = None if storage is None else self._census.entry(storage[0])
            if storage is None or entry is None:
                return None
            # It may have been made long ago and been added to in place, in a step that was sampled.
            stack = self._births.stack_of(storage[0])
            graph = autograd_graphs.behind(deepest, counted=self._apart(told))
            return entry.kind, Inspection(
                self._step, stack, _shape(deepest), _type(deepest), held_by[chosen], graph
            )

    def _deep(self, roots: list[Any]) -> list[Any]:
        """Those of some tensors that the deepest graph may hang on, the likeliest first."""
        reach = [_n_nodes_behind([tensor]) for tensor in roots]
        if max(reach, default=0) < _ABOUT_AS_FAR * _n_nodes_behind(roots):
            # Several graphs: they hang on what stays, not on the variables of a step.
            entries = [self._entry_of(tensor) for tensor in roots]
            stay = [place for place, one in enumerate(entries) if one is not None and one.is_aged]
            if stay:
                # Each is as good an example as the others, and best is one whose line is known.
                stay.sort(key=lambda place: not self._line_of(roots[place]))
                return [roots[place] for place in stay]
        far = [place for place, n in enumerate(reach) if n >= _ABOUT_AS_FAR * max(reach)]
        return [roots[place] for place in sorted(far, key=reach.__getitem__)]

    def _entry_of(self, tensor: Any) -> Entry | None:  # noqa: ANN401
        storage = autograd_graphs.storage_of(tensor)
        return None if storage is None else self._census.entry(storage[0])

    def _line_of(self, tensor: Any) -> Stack:  # noqa: ANN401
        storage = autograd_graphs.storage_of(tensor)
        return () if storage is None else self._births.stack_of(storage[0])

    def _apart(self, told: Collection[Group]) -> set[int]:
        """Storages not counted as kept by a graph: what did not grow, or is told of itself.

        Of a kind that is told of, what no line is known of counts as told too.
        """
        kinds = {kind for kind, _ in told}
        return {
            address
            for address, entry in self._census.entries()
            if entry.born <= self._since
            or (
                entry.kind in kinds
                and (
                    (place := self._place_of(address, entry)) is None or (entry.kind, place) in told
                )
            )
        }

    def _with_ring(self, sight: Inspection, ring: AutogradCycle | None) -> Inspection:
        """What was seen with the ring that keeps it, and the line that closes the ring."""
        if ring is None:
            return sight
        stack = () if ring.closed_by is None else self._line_of(ring.closed_by)
        return replace(sight, stack=stack or sight.stack, cycle=ring.words)

    def _place_of(self, address: int, entry: Entry) -> Place | None:
        """The line that made a storage, if that was in a step that was sampled as a whole."""
        stack = self._births.stack_of(address) if entry.born in self._births.steps else ()
        return stack[0] if stack else None

    def _members(self, kinds: Collection[TensorKind]) -> dict[Group, list[tuple[int, Entry]]]:
        """Storages by group; of a kind whose lines are known in part, those with a line alone."""
        members: dict[Group, list[tuple[int, Entry]]] = {}
        for address, entry in self._census.entries():
            if entry.kind in kinds and entry.is_aged and entry.born > self._since:
                place = self._place_of(address, entry)
                members.setdefault((entry.kind, place), []).append((address, entry))
        lined = {kind for kind, place in members if place is not None}
        for kind in lined:
            members.pop((kind, None), None)
        largest = sorted(members, key=lambda group: -sum(e.bytes for _, e in members[group]))
        return {group: members[group] for group in largest[:_MOST_GROUPS]}

    def _largest(self, sorts: Collection[Sort]) -> dict[Group, list[tuple[int, Entry]]]:
        largest: dict[Sort, tuple[int, Entry]] = {}
        for address, entry in self._census.entries():
            sort = entry.kind.device, entry.kind.dtype
            if sort in sorts and (sort not in largest or entry.bytes > largest[sort][1].bytes):
                largest[sort] = address, entry
        found: dict[Group, list[tuple[int, Entry]]] = {}
        for address, entry in largest.values():
            found[entry.kind, self._place_of(address, entry)] = [(address, entry)]
        return found

    def _sight(self, group: Group, examples: list[Any], chains: tuple[Chain, ...]) -> Inspection:
        newest = examples[0] if examples else None
        storage = None if newest is None else autograd_graphs.storage_of(newest)
        stack = () if storage is None or group[1] is None else self._births.stack_of(storage[0])
        return Inspection(
            self._step,
            stack,
            "" if newest is None else _shape(newest),
            "" if newest is None else _type(newest),
            chains,
            is_hidden=not examples,
        )


def _of_all(chains: Sequence[tuple[Chain, ...]]) -> tuple[Chain, ...]:
    """The chains of all examples as those of their group, each holder once.

    A holder of several examples is the group's; one of a single example, such as the variable that
    the newest is still in, may be that example's alone. Of equals each example's order stays, in
    which the program comes before libraries.

    Args:
        chains: Of each example its own.
    """
    n_held = Counter(name for each in chains for name in set(map(_without_entries, each)))
    first: dict[tuple[str, ...], Chain] = {}
    for turn in zip_longest(*chains):
        for chain in filter(None, turn):
            first.setdefault(_without_entries(chain), chain)
    ordered = sorted(first, key=lambda name: -n_held[name])
    return tuple(first[name] for name in ordered[:_MOST_CHAINS])


def _without_entries(chain: Chain) -> tuple[str, ...]:
    """A chain's parts, whichever entries of containers it goes through."""
    return tuple("[]" if part.startswith("[") else part for part in chain.parts)


def _n_nodes_behind(tensors: Iterable[Any]) -> int:
    """Nodes of the graphs behind some tensors, each node once."""
    walk = autograd_graphs.Walk(_MOST_NODES)
    for _ in walk.nodes(
        [node for one in tensors if (node := autograd_graphs.grad_fn_of(one)) is not None]
    ):
        pass
    return walk.n_nodes


def _oldest_and_newest(roots: list[Any]) -> list[Any]:
    half = _MOST_ROOTS // 2
    return roots if len(roots) <= _MOST_ROOTS else roots[:half] + roots[-half:]


def _is_named(chains: Iterable[Chain]) -> bool:
    """Whether something else than a graph holds a tensor."""
    return any(not _is_through_graph(chain) for chain in chains)


def _is_through_graph(chain: Chain) -> bool:
    return any(part.startswith(".grad_fn") for part in chain.parts)


def _cycle_of(ours: set[int], garbage: Garbage, ring: tuple[str, ...]) -> tuple[str, ...]:
    """The cycle that holds tensors that nothing else holds; empty where none is known.

    Args:
        ours: Their ids.
        garbage: What waits for the collector.
        ring: The ring of autograd's that holds them, if one does.
    """
    for group in garbage.groups:
        if ours & group.ids:
            return group.cycle
    if ring or not garbage.groups:
        return ring
    return garbage.groups[0].cycle


def _by_storage(tensors: list[Any], wanted: set[int]) -> dict[int, Any]:
    """For each wanted storage a tensor on it: one with a graph, the last that was made of several.

    What a node saved of its own output is a tensor of its own, without a graph, and an object of
    Python's once a look has asked for it. It lies on the storage of the output itself, which is
    what the program has, and whose holder is wanted.
    """
    found: dict[int, Any] = {}
    with_graph = set()
    for tensor in tensors:
        storage = autograd_graphs.storage_of(tensor)
        if storage is None or storage[0] not in wanted:
            continue
        if autograd_graphs.grad_fn_of(tensor) is not None:
            with_graph.add(storage[0])
        elif storage[0] in with_graph:
            continue
        found[storage[0]] = tensor
    return found


def _examples(entries: list[tuple[int, Entry]], found: dict[int, Any]) -> list[Any]:
    """A few tensors of a group, the newest first."""
    here = sorted((entry.born, address) for address, entry in entries if address in found)
    places = sorted({len(here) - 1, len(here) // 2, 0} - {-1}, reverse=True)[:_EXAMPLES]
    return [found[here[place][1]] for place in places if here]


def _graph_behind(tensors: list[Any], counted: set[int]) -> Graph | None:
    """The graph behind some tensors together, each node and storage once."""
    roots = [node for one in tensors if (node := autograd_graphs.grad_fn_of(one)) is not None]
    if not roots:
        return None
    walk = autograd_graphs.Walk()
    n_bytes = sum(walk.bytes_kept_by(node, counted) for node in walk.nodes(roots))
    return Graph(walk.n_nodes, n_bytes, type(roots[-1]).__name__, is_exact=walk.is_exact)


def _shape(tensor: Any) -> str:  # noqa: ANN401
    """Such as ``(120, 3) float32``; the type alone for a subclass, which may compute its shape."""
    import torch

    base: Any = torch.Tensor
    dtype = str(base.dtype.__get__(tensor)).removeprefix("torch.")
    if type(tensor) not in {base, torch.nn.Parameter}:
        return dtype
    return f"{tuple(base.size(tensor))} {dtype}"


def _type(tensor: Any) -> str:  # noqa: ANN401
    return f"{module_of(type(tensor))}.{type_name(type(tensor))}"
