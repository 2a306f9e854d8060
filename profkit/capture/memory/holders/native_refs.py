"""Links between objects that Python's collector does not see.

A tensor's gradient, base and graph are held in C++. An array of objects is no container to the
collector, and a dict or tuple in which there is nothing that could be part of a cycle it does not
even list. Each is found by a pass forward over all objects, made only when a search backward has
come to an object that nothing seems to hold. So is the way to what the program has frozen.
"""

import gc
import sys
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

from profkit.capture.memory.holders import autograd_graphs, frozen_objects
from profkit.capture.memory.holders.attributes import type_name
from profkit.capture.memory.holders.untracked_containers import (
    instances,
    referrers_of,
    tensor_types,
    unlisted,
    variables,
)

NODE_LIMIT: Final = 60_000
"""Graph nodes that are looked through in one go: about half a second."""

_NEWEST: Final = 32
_HEADS: Final = 3
"""Of how many of the newest tensors the names are preferred."""


class NativeRef(NamedTuple):
    """One object holding another.

    Attributes:
        holder: What holds.
        held: Id of what is held.
        label: How it reads after the holder's own text; empty for an ordinary container.
    """

    holder: object
    held: int
    label: str


def refs_to(wanted: dict[int, object], skip: Collection[int]) -> list[NativeRef]:
    """The hidden links that lead to some objects.

    Args:
        wanted: The objects by id.
        skip: Ids of objects that are no holders.
    """
    links: list[NativeRef] = []
    if "torch" in sys.modules:
        tensors = [one for one in live_tensors() if id(one) not in skip]
        tensors += _gradients_with_graphs(tensors)
        links += _from_tensors(tensors, wanted)
        missing = {one: wanted[one] for one in wanted.keys() - {link.held for link in links}}
        links += _from_graphs(tensors, missing, {*skip, id(missing), id(wanted)})
    missing = {one: wanted[one] for one in wanted.keys() - {link.held for link in links}}
    if missing:
        skip = {*skip, id(missing), id(wanted)}
        links += _from_unlisted(missing, skip)
        found = {link.held for link in links}
        links += [
            NativeRef(*step, "") for step in frozen_objects.steps_to(missing.keys() - found, skip)
        ]
    return links


def live_tensors() -> list[Any]:
    """All tensors that Python knows of."""
    return instances(gc.get_objects(), tensor_types())


def _gradients_with_graphs(tensors: list[Any]) -> list[Any]:
    """Gradients that have a graph, and were no objects of Python's before they were asked for."""
    known = set(map(id, tensors))
    gradients = [
        one for tensor in tensors if (one := autograd_graphs.gradient_of(tensor)) is not None
    ]
    return [
        one
        for one in gradients
        if id(one) not in known and autograd_graphs.grad_fn_of(one) is not None
    ]


def _from_tensors(tensors: list[Any], wanted: dict[int, object]) -> Iterator[NativeRef]:
    """Gradients, and the tensors that views look into."""
    if not any(autograd_graphs.is_tensor(one) for one in wanted.values()):
        return
    for tensor in tensors:
        gradient = autograd_graphs.gradient_of(tensor)
        if gradient is not None and id(gradient) in wanted:
            yield NativeRef(tensor, id(gradient), ".grad")
        base = autograd_graphs.base_of(tensor)
        if base is not None and id(base) in wanted:
            yield NativeRef(tensor, id(base), "._base")


def _from_graphs(
    tensors: list[Any], wanted: dict[int, object], skip: set[int]
) -> Iterator[NativeRef]:
    """What nodes have saved, and nodes of the user's own functions."""
    roots = [(tensor, node) for tensor in tensors if (node := autograd_graphs.grad_fn_of(tensor))]
    if not roots or not wanted:
        return
    roots.sort(key=lambda one: -_number_of(one[1]))
    skip |= {id(tensors), *map(id, roots)}
    # Where one graph is part of another, a name is wanted that the program still uses: that of
    # the newest tensors that something in Python holds.
    for tensor, node in _named(roots[:_NEWEST], skip)[:_HEADS]:
        yield from _behind(tensor, node, autograd_graphs.Walk(NODE_LIMIT // _HEADS), wanted)
    walk = autograd_graphs.Walk(NODE_LIMIT)
    for tensor, node in roots:
        yield from _behind(tensor, node, walk, wanted)


def _number_of(node: Any) -> int:  # noqa: ANN401
    """A node's number in the order in which they were made; 0 where torch does not tell."""
    ask = getattr(node, "_sequence_nr", None)
    return 0 if ask is None else int(ask())


def _named(roots: list[tuple[Any, Any]], skip: set[int]) -> list[tuple[Any, Any]]:
    """Those of some tensors that an object of Python's or a variable holds."""
    held = set(map(id, variables()))
    for referrer in referrers_of(tensor for tensor, _ in roots):
        if id(referrer) not in skip and type(referrer) is not FrameType:
            held.update(map(id, gc.get_referents(referrer)))
    return [(tensor, node) for tensor, node in roots if id(tensor) in held]


def _behind(
    tensor: object, root: object, walk: autograd_graphs.Walk, wanted: dict[int, object]
) -> Iterator[NativeRef]:
    """What the graph behind one tensor keeps of what is wanted."""
    for node in walk.nodes([root]):
        if id(node) in wanted:
            yield NativeRef(tensor, id(node), ".grad_fn" if node is root else ".grad_fn → …")
        for name, kept in walk.saved_by(node):
            saver = f"{name!r} saved by {type_name(type(node))}"
            if id(kept) in wanted:
                yield NativeRef(tensor, id(kept), f".grad_fn → {saver}")
            base = autograd_graphs.base_of(kept) if autograd_graphs.is_tensor(kept) else None
            if base is not None and id(base) in wanted:
                yield NativeRef(tensor, id(base), f".grad_fn → the base of {saver}")


def _from_unlisted(wanted: dict[int, object], skip: Collection[int]) -> Iterator[NativeRef]:
    """Arrays of objects, and the dicts and tuples that the collector does not list."""
    for container in unlisted(gc.get_objects(), skip):
        for one in wanted.keys() & set(map(id, container.contents)):
            yield NativeRef(container.thing, one, "")
