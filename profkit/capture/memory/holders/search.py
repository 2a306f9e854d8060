"""Searches backward from objects to what keeps them alive.

Each level asks the garbage collector once for the referrers of the level before: one pass in C over
all objects, whereas a walk from the roots would touch every object from Python. References that the
collector does not see (:mod:`profkit.capture.memory.holders.native_refs`) are searched only for
objects that have no referrer.

Source: ``gc.get_referrers`` and ``gc.get_referents`` of Python's library reference.
"""

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from typing import Final

from profkit.capture.memory.holders import native_refs
from profkit.capture.memory.holders.attributes import is_class
from profkit.capture.memory.holders.roots import Root, Roots
from profkit.capture.memory.holders.untracked_containers import referrers_of
from profkit.capture.process.objects import referents
from profkit.dataclass import dataclass

MAX_LEVELS: Final = 200
"""Links of a chain. A nested module takes three, and models nest some ten deep; a linked list takes
as many as it is long, where more add no information."""

_MAX_BREADTH: Final = 192
"""Objects per pass: each costs a comparison with every reference of the process."""

_MAX_REFERRERS: Final = 2_000
"""Referrers examined per level: an object that many share would otherwise flood the search."""

_GRACE_LEVELS: Final = 3
"""Levels by which a holder in the program may be farther away than one in a library and still be
preferred, and any other holder than an argument."""


@dataclass
class ReferenceGraph:
    """The references that a search has found, and the roots that they end in.

    Attributes:
        referrers: From an object's id to the ids of its referrers, in the order of the search.
        roots: From an object's id to the root that it is, or that holds it directly.
        nodes: The objects by id; keeps them alive.
        labels: Names of references through C++, by the ids of both ends.
        is_exact: False if the search stopped at a limit.
    """

    referrers: dict[int, list[int]] = field(default_factory=dict)
    roots: dict[int, Root] = field(default_factory=dict)
    nodes: dict[int, object] = field(default_factory=dict)
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    is_exact: bool = True

    def above(self, identity: int) -> Iterator[int]:
        """Yield an object and everything that leads to it, the nearest first."""
        above = [identity]
        seen = {identity}
        for node in above:
            yield node
            new = [holder for holder in self.referrers.get(node, ()) if holder not in seen]
            seen.update(new)
            above += new


class Search:
    """One search for holders of objects; arguments as in ``holder_chains.find_holdings``."""

    def __init__(
        self, targets: Sequence[object], skip: Collection[int], limit: int, budget_s: float
    ) -> None:
        self.graph = ReferenceGraph(nodes={id(target): target for target in targets})
        self._targets = list(self.graph.nodes)
        self._limit = limit
        self._until = time.thread_time() + budget_s
        self._roots = Roots()
        self._skip = {*skip, id(targets), id(self.graph.nodes), id(self.__dict__)}
        self._level_of_root: dict[int, int] = {}
        self._held_by_profkit: set[int] = set()
        self._expanded: set[int] = set()
        self._held_natively: set[int] = set()

    def run(self) -> ReferenceGraph:
        """Search until every target has its holders or no referrers are left."""
        frontier = list(self._targets)
        for level in range(MAX_LEVELS):
            for identity in frontier:
                self._note_root(identity, level)
            frontier = self._select_unresolved(frontier, level)
            if not frontier:
                self._note_unknown_roots()
                return self.graph

            # CPU time of this thread: a busy machine does not cut the search.
            if time.thread_time() > self._until:
                break
            frontier = self._expand(frontier)

        self.graph.is_exact = False
        return self.graph

    def _expand(self, frontier: list[int]) -> list[int]:
        """Find the referrers of some objects, and return the ids of new ones."""
        self._expanded.update(frontier)
        new = self._add_all(referrers_of(self.graph.nodes[node] for node in frontier), frontier)

        without_referrer = {
            node: self.graph.nodes[node]
            for node in frontier
            if not self.graph.referrers.get(node) and node not in self._held_by_profkit
        }
        if without_referrer:
            skip = self._skip | {id(without_referrer)}
            for ref in native_refs.find_native_refs(without_referrer, skip):
                new.extend(self._add(ref.holder, [ref.held]))
                self._held_natively.add(ref.held)
                if ref.label:
                    self.graph.labels[id(ref.holder), ref.held] = ref.label

        return new

    def _add_all(self, referrers: list[object], frontier: list[int]) -> list[int]:
        """Record what referrers refer to of a frontier, and return the ids of new ones."""
        targets = set(frontier)
        # These lists and sets refer to the objects as well.
        self._skip |= {id(referrers), id(frontier), id(targets)}

        new: list[int] = []
        for referrer in _limit(referrers, self._roots):
            if id(referrer) in self._skip:
                continue
            children = targets.intersection(map(id, referents(referrer)))
            if self._roots.is_own(referrer):
                self._held_by_profkit |= children
            else:
                new.extend(self._add(referrer, children))
        return new

    def _add(self, holder: object, children: Iterable[int]) -> list[int]:
        """Record that a holder refers to some objects, and return its id if it is new."""
        identity = id(holder)
        for child in children:
            parents = self.graph.referrers.setdefault(child, [])
            if identity not in parents and identity != child:
                parents.append(identity)

        # Another way to a known object, whose holders are searched once.
        if identity in self.graph.nodes:
            return []
        self.graph.nodes[identity] = holder
        return [identity]

    def _note_root(self, identity: int, level: int) -> None:
        """Record the root that an object is, or that holds it directly."""
        thing = self.graph.nodes[identity]
        root = self._roots.of_value(identity)
        if root is None and level:
            if type(thing) is dict:
                root = self._roots.of_namespace(thing)
            elif is_class(thing):
                root = self._roots.of_class(thing)
        if root is not None:
            self.graph.roots[identity] = root
            self._level_of_root[identity] = level

    def _note_unknown_roots(self) -> None:
        """Record objects held by running code or C: those with more references than were found."""
        if not self._open_above_targets(MAX_LEVELS):
            return

        nodes = self.graph.nodes
        held = chain.from_iterable(referents(thing) for thing in nodes.values())
        counts = Counter(map(id, held))
        explained = self._held_natively.union(
            self._targets, self._held_by_profkit, self.graph.roots
        )

        for identity in self._expanded - explained:
            if sys.getrefcount(nodes[identity]) > counts[identity] + _REFCOUNT_OF_SEARCH:
                self.graph.roots[identity] = Root("unknown", "")

    def _select_unresolved(self, frontier: list[int], level: int) -> list[int]:
        """Select the objects of a frontier that may still lead to a wanted holder."""
        wanted = self._open_above_targets(level)
        unresolved = [node for node in frontier if node in wanted and not self._is_end(node)]
        if len(unresolved) > _MAX_BREADTH:
            self.graph.is_exact = False
        return unresolved[:_MAX_BREADTH]

    def _is_end(self, identity: int) -> bool:
        root = self.graph.roots.get(identity)
        return root is not None and root.kind in {"module-global", "class"}

    def _open_above_targets(self, level: int) -> set[int]:
        """Return all objects above those direct holders for which no root is known yet."""
        wanted: set[int] = set()
        for target in self._targets:
            if target in self.graph.roots and self._limit == 1:
                continue

            holders = self.graph.referrers.get(target)
            if holders is None:
                wanted.add(target)
                continue
            open_above = [above for holder in holders if (above := self._open_above(holder, level))]
            if len(holders) - len(open_above) < self._limit:
                wanted.update(*open_above)
        return wanted

    def _open_above(self, holder: int, level: int) -> set[int]:
        """Return a holder and all objects above it; empty once it has a root."""
        seen: set[int] = set()
        for node in self.graph.above(holder):
            root = self.graph.roots.get(node)
            if root is not None:
                since = level - self._level_of_root.get(node, level)
                if not (root.is_library or root.is_argument) or since >= _GRACE_LEVELS:
                    return set()
            seen.add(node)
        return seen


def _limit(referrers: list[object], roots: Roots) -> Iterable[object]:
    """Return all referrers, or of too many those that end a search and then the first ones."""
    if len(referrers) <= _MAX_REFERRERS:
        return referrers
    ends = [
        thing
        for thing in referrers
        if is_class(thing) or (type(thing) is dict and roots.of_namespace(thing))
    ]
    return ends + referrers[: _MAX_REFERRERS - min(len(ends), _MAX_REFERRERS)]


def _refcount_of_search() -> int:
    """Return how many references to an object the search itself holds."""
    nodes = {0: object()}
    return sys.getrefcount(nodes[0])


_REFCOUNT_OF_SEARCH: Final = _refcount_of_search()
