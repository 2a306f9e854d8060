"""Searches forward from the program's own names to what they hold.

What a program keeps is mostly a few links from a variable or a global of its own. To go there takes
milliseconds, however many objects there are, whereas each level of a search backward is a pass over
all of them. The search is complete if it finds every reference to every target: their reference
counts tell.

Only what belongs to the program is followed: no module and class of a library, no code, and of very
large containers only the entries that may be targets and the newest ones.

Source: ``gc.get_referents`` of Python's library reference.
"""

import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import FunctionType
from typing import Any, Final

from profkit.capture.memory.holders.attributes import is_class
from profkit.capture.memory.holders.roots import Root, Roots
from profkit.capture.memory.holders.search import ReferenceGraph
from profkit.capture.process import frames
from profkit.capture.process.objects import is_exactly, referents

_MAX_OBJECTS: Final = 6_000
"""Objects that are followed, some microsecond each: a model of 400 modules has as many."""
_LARGE: Final = 1_024
"""Entries of a container above which only the newest ones are followed."""
_NEWEST: Final = 128
"""Entries of a large container that are followed: what grows is at its end."""
_MAX_ENTRIES: Final = 100_000
"""Entries of large containers that are compared with the targets, 30 ns each."""
_MAX_PARENTS: Final = 8
"""Objects noted as the holders of one that is no target: more name no further variable."""
_GROWING: Final = (list, dict, deque)

_WITHOUT_HOLDERS: Final = frozenset(
    map(
        id,
        (
            types.ModuleType, types.CodeType, types.FrameType, types.BuiltinFunctionType,
            types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
            types.MemberDescriptorType, types.MappingProxyType, property, staticmethod,
            classmethod, weakref.ReferenceType,
        ),
    )
)  # fmt: skip
"""Types of objects that are not followed: code, and what belongs to the interpreter."""


def count_references(references: Iterable["weakref.ref[Any]"]) -> dict[int, int]:
    """Count the references to each of some objects that are alive, by id.

    Args:
        references: Weak ones; nothing of the caller's refers to the objects.
    """
    n_references = {}
    for reference in references:
        thing = reference()
        if thing is not None:
            n_references[id(thing)] = sys.getrefcount(thing) - _REFERENCES_HERE
    return n_references


def search_forward(
    targets: Sequence[object], skip: Collection[int], n_references: Mapping[int, int]
) -> ReferenceGraph | None:
    """Search every reference to the targets; return None if not all of them are found.

    Args:
        targets: The objects.
        skip: Ids of the caller's objects, which are not holders.
        n_references: How many references the program has to each target, by id.
    """
    search = _ForwardSearch(targets, skip, n_references)
    for roots in search.find_roots():
        search.follow(roots)
        if search.is_complete():
            return search.graph
    return None


class _ForwardSearch:
    """One search forward; arguments as in :func:`search_forward`."""

    def __init__(
        self, targets: Sequence[object], skip: Collection[int], n_references: Mapping[int, int]
    ) -> None:
        self.graph = ReferenceGraph(nodes={id(target): target for target in targets})
        self._targets = set(self.graph.nodes)
        self._roots = Roots()
        self._program = list(self._roots.find_program_globals())
        self._skip = {*skip, id(targets), id(self.graph.nodes), id(self.__dict__)}
        self._seen = {*self._skip, *self._roots.namespaces()}
        self._n_missing = {
            target: n_references[target] for target in self._targets if n_references[target] > 0
        }
        self._n_objects = 0
        self._n_entries = 0

    def is_complete(self) -> bool:
        """Return whether every reference to every target was found."""
        return not self._n_missing

    def find_roots(self) -> Iterator[list[tuple[object, Root]]]:
        """Find the program's roots, and yield first those that chains prefer."""
        lasting: list[tuple[object, Root]] = list(self._program)
        arguments: list[tuple[object, Root]] = []

        for frame in frames.running():
            in_cells = {*frame.f_code.co_cellvars, *frame.f_code.co_freevars}
            for name, value in frames.locals_of(frame).items():
                root = self._roots.of_value(id(value))
                if id(value) in self._targets:
                    # The cell holds the value of such a variable, and counts where it is followed.
                    if name not in in_cells:
                        self._count(id(value))
                    if root is not None:
                        self.graph.roots[id(value)] = root
                elif root is not None and root.kind == "frame" and not root.is_library:
                    (arguments if root.is_argument else lasting).append((value, root))

        yield lasting
        yield arguments

    def follow(self, roots: Iterable[tuple[object, Root]]) -> None:
        """Follow the references of some roots, the nearest first."""
        pending: deque[object] = deque()

        for thing, root in roots:
            if gc.is_tracked(thing) and id(thing) not in self._skip:
                self.graph.roots.setdefault(id(thing), root)
                if id(thing) not in self.graph.nodes:
                    self.graph.nodes[id(thing)] = thing
                    self._seen.add(id(thing))
                    pending.append(thing)

        # Once every reference is found, what has not been followed leads to no other.
        while pending and self._n_missing and self._n_objects < _MAX_OBJECTS:
            thing = pending.popleft()
            self._n_objects += 1
            pending += [
                held for held in self._select_entries(thing) if self._note_reference(held, thing)
            ]

    def _note_reference(self, held: object, holder: object) -> bool:
        """Note a reference, and return whether to follow what it leads to, which is new."""
        referrers = self.graph.referrers
        if id(held) in self._targets:
            self._count(id(held))
            parents = referrers.setdefault(id(held), [])
            if id(holder) not in parents:
                parents.append(id(holder))
            return False

        if id(held) in self._seen:
            # Several names may share a container.
            parents = referrers.get(id(held), [])
            if 0 < len(parents) < _MAX_PARENTS and id(holder) not in parents:
                parents.append(id(holder))
            return False

        self._seen.add(id(held))
        if self._is_followed(held):
            self._add(held, holder)
            return True
        return False

    def _count(self, target: int) -> None:
        """Note that a reference to a target was found."""
        n_missing = self._n_missing.pop(target, 0)
        if n_missing > 1:
            self._n_missing[target] = n_missing - 1

    def _add(self, held: object, holder: object) -> None:
        """Add an object to the graph, with the one that led to it."""
        self.graph.nodes[id(held)] = held
        self.graph.referrers[id(held)] = [id(holder)]
        if is_class(held):
            self.graph.roots[id(held)] = self._roots.of_class(held)

    def _select_entries(self, thing: Any) -> Iterable[object]:  # noqa: ANN401
        """Return what an object refers to; of a large container targets and newest entries."""
        if not is_exactly(thing, *_GROWING) or len(thing) <= _LARGE:
            return referents(thing)

        self._n_entries += len(thing)
        if self._n_entries > _MAX_ENTRIES:
            return ()

        entries = thing.values() if type(thing) is dict else thing
        try:
            # Most containers have none, which a pass in C shows.
            has_targets = not self._targets.isdisjoint(map(id, entries))
            held = [entry for entry in entries if id(entry) in self._targets] if has_targets else []
            newest = list(islice(reversed(entries), _NEWEST))
        except RuntimeError:  # another thread changed it meanwhile
            return ()
        return [*held, *(entry for entry in newest if id(entry) not in self._targets)]

    def _is_followed(self, thing: object) -> bool:
        """Tell whether an object may lead to one that the program holds."""
        if not gc.is_tracked(thing) or id(type(thing)) in _WITHOUT_HOLDERS:
            return False
        if type(thing) is FunctionType:
            return bool(thing.__closure__) or self._roots.is_of_program(thing.__globals__)
        if is_class(thing):
            return not self._roots.of_class(thing).is_library
        return not self._roots.is_own(thing)


def _count_references_of_variable() -> int:
    """Count the references to an object that only a variable of a running function holds."""
    thing = object()
    return sys.getrefcount(thing)


_REFERENCES_HERE: Final = _count_references_of_variable()
