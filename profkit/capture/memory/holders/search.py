"""Searches from objects back to what keeps them alive.

Each level asks the collector once who refers to the objects of the level before: a pass in C over
all objects, where a walk from the roots would touch each one from Python. What the collector can
not see (:mod:`profkit.capture.memory.holders.native_refs`) is asked for only where its answer leads nowhere.

Source: ``gc.get_referrers`` and ``gc.get_referents`` of Python's library reference.
"""

import gc
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from profkit.capture.memory.holders import native_refs
from profkit.capture.memory.holders.attributes import is_class
from profkit.capture.memory.holders.roots import Root, Roots
from profkit.capture.memory.holders.untracked_containers import referrers_of

MAX_LEVELS: Final = 200
"""Links of a chain. Nested modules take three links each, and models nest some ten deep; a list
whose nodes refer to each other takes as many as it is long, and more than this says no more."""

_BREADTH: Final = 192
"""Objects asked about in one pass: each costs a comparison with every reference there is."""

_POPULAR: Final = 2_000
"""Referrers looked at in one level: an object that many share would else flood the search."""

_GRACE: Final = 3
"""Levels for which a holder within the program is preferred to a nearer one within a library, and
any to an argument, which somebody else has passed."""


@dataclass
class Found:
    """What a search has found: a graph of who refers to whom, and where it ends.

    Attributes:
        up: From an object's id to the ids of what refers to it, the nearest to a target first.
        roots: From an object's id to the root that it is, or that holds it directly.
        nodes: The objects by id, for as long as this is alive.
        labels: Names of links that the collector does not see, by the ids of both ends.
        is_exact: Whether the search came to its own end, and not to its limits.
    """

    up: dict[int, list[int]] = field(default_factory=dict)
    roots: dict[int, Root] = field(default_factory=dict)
    nodes: dict[int, object] = field(default_factory=dict)
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    is_exact: bool = True


class Search:
    """One search, for several objects at once.

    Args:
        targets: Ids of the objects whose holders are wanted; the caller holds them meanwhile.
        own: Ids of objects that are never holders.
        limit: Holders wanted for each target.
        budget_s: Seconds of work after which it stops with what it has.
    """

    def __init__(
        self, targets: Sequence[object], own: Collection[int], limit: int, budget_s: float
    ) -> None:
        self.found = Found(nodes={id(target): target for target in targets})
        self._targets = list(self.found.nodes)
        self._limit = limit
        self._until = time.thread_time() + budget_s
        self._roots = Roots()
        self._skip = {*own, id(targets), id(self.found.nodes), id(self.__dict__)}
        self._level_of_root: dict[int, int] = {}
        self._ours: set[int] = set()
        self._asked: set[int] = set()
        self._beside: set[int] = set()

    def run(self) -> Found:
        """Search until every target has its holders, or there is nothing more to ask."""
        frontier = list(self._targets)
        for level in range(MAX_LEVELS):
            for identity in frontier:
                self._settle(identity, level)
            frontier = self._open(frontier, level)
            if not frontier:
                self._settle_nameless()
                return self.found
            if time.thread_time() > self._until:
                break
            frontier = self._ask(frontier)
        self.found.is_exact = False
        return self.found

    def _ask(self, frontier: list[int]) -> list[int]:
        """Who refers to these; the ids of those that were not known."""
        self._asked.update(frontier)
        new = self._note(referrers_of(self.found.nodes[one] for one in frontier), frontier)
        lost = {
            one: self.found.nodes[one]
            for one in frontier
            if not self.found.up.get(one) and one not in self._ours
        }
        if lost:
            for link in native_refs.refs_to(lost, self._skip | {id(lost)}):
                new.extend(self._add(link.holder, [link.held]))
                self._beside.add(link.held)
                if link.label:
                    self.found.labels[id(link.holder), link.held] = link.label
        return new

    def _note(self, referrers: list[object], frontier: list[int]) -> list[int]:
        asked = set(frontier)
        self._skip |= {id(referrers), id(frontier), id(asked)}
        new: list[int] = []
        for referrer in _most_telling(referrers, self._roots):
            if id(referrer) in self._skip:
                continue
            children = asked.intersection(map(id, gc.get_referents(referrer)))
            if self._roots.is_ours(referrer):
                self._ours |= children
            else:
                new.extend(self._add(referrer, children))
        return new

    def _add(self, holder: object, children: Iterable[int]) -> list[int]:
        """Note that a holder refers to some objects. Its id, if it was not known."""
        identity = id(holder)
        for child in children:
            parents = self.found.up.setdefault(child, [])
            if identity not in parents and identity != child:
                parents.append(identity)
        if identity in self.found.nodes:
            return []
        self.found.nodes[identity] = holder
        return [identity]

    def _settle(self, identity: int, level: int) -> None:
        """Note it if an object is a root, or is held by one."""
        thing = self.found.nodes[identity]
        root = self._roots.of_value(identity)
        if root is None and level:
            if type(thing) is dict:
                root = self._roots.of_namespace(thing)
            elif is_class(thing):
                root = self._roots.of_class(thing)
        if root is not None:
            self.found.roots[identity] = root
            self._level_of_root[identity] = level

    def _settle_nameless(self) -> None:
        """Note what running code or C holds: more refers to it than what was found."""
        if not self._unsettled(MAX_LEVELS):
            return
        nodes = self.found.nodes
        held = chain.from_iterable(gc.get_referents(thing) for thing in nodes.values())
        counts = Counter(map(id, held))
        settled = self._beside.union(self._targets, self._ours, self.found.roots)
        for identity in self._asked - settled:
            if sys.getrefcount(nodes[identity]) > counts[identity] + _OF_SEARCH_ALONE:
                self.found.roots[identity] = Root("unknown", "")

    def _open(self, frontier: list[int], level: int) -> list[int]:
        """Those of a frontier that may still lead to a holder that is wanted."""
        wanted = self._unsettled(level)
        still = [one for one in frontier if one in wanted and not self._is_end(one)]
        if len(still) > _BREADTH:
            self.found.is_exact = False
        return still[:_BREADTH]

    def _is_end(self, identity: int) -> bool:
        root = self.found.roots.get(identity)
        return root is not None and root.kind in {"module-global", "class"}

    def _unsettled(self, level: int) -> set[int]:
        """All that is above those direct holders that no root is known for yet."""
        wanted: set[int] = set()
        for target in self._targets:
            if target in self.found.roots and self._limit == 1:
                continue
            holders = self.found.up.get(target)
            if holders is None:
                wanted.add(target)
                continue
            open_above = [above for one in holders if (above := self._above(one, level))]
            if len(holders) - len(open_above) < self._limit:
                wanted.update(*open_above)
        return wanted

    def _above(self, holder: int, level: int) -> set[int]:
        """All known above a holder, itself included; empty once it has a root."""
        seen = {holder}
        pending = [holder]
        while pending:
            one = pending.pop()
            root = self.found.roots.get(one)
            if root is not None:
                since = level - self._level_of_root.get(one, level)
                if not (root.is_library or root.is_lent) or since >= _GRACE:
                    return set()
            for parent in self.found.up.get(one, ()):
                if parent not in seen:
                    seen.add(parent)
                    pending.append(parent)
        return seen


def _most_telling(referrers: list[object], roots: Roots) -> Iterable[object]:
    """All referrers, or of too many those that end a search and then the first ones."""
    if len(referrers) <= _POPULAR:
        return referrers
    ends = [
        one for one in referrers if is_class(one) or (type(one) is dict and roots.of_namespace(one))
    ]
    return ends + referrers[: _POPULAR - min(len(ends), _POPULAR)]


def _references_of_a_search() -> int:
    """How many references to an object are counted that the search alone holds."""
    nodes = {0: object()}
    return sys.getrefcount(nodes[0])


_OF_SEARCH_ALONE: Final = _references_of_a_search()
