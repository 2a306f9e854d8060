"""Links between objects that Python's collector does not see.

A tensor's gradient, base and graph are held in C++. An array of objects is no container to the
collector, and a dict or tuple in which there is nothing that could be part of a cycle it does not
even list. Each is found by a pass forward over all objects, made only when a search backward has
come to an object that nothing seems to hold.
"""

import gc
import sys
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from profkit.capture.memory import graphs
from profkit.capture.memory.attributes import type_name
from profkit.capture.memory.heap import unlisted

NODE_LIMIT: Final = 100_000
"""Graph nodes that are looked through: about a second."""


class Link(NamedTuple):
    """One object holding another.

    Attributes:
        holder: What holds.
        held: Id of what is held.
        label: How it reads after the holder's own text; empty for an ordinary container.
    """

    holder: object
    held: int
    label: str


def links_to(wanted: dict[int, object], skip: Collection[int]) -> list[Link]:
    """The hidden links that lead to some objects.

    Args:
        wanted: The objects by id.
        skip: Ids of objects that are no holders.
    """
    links: list[Link] = []
    if "torch" in sys.modules:
        tensors = [one for one in live_tensors() if id(one) not in skip]
        links += _from_tensors(tensors, wanted)
        missing = {one: wanted[one] for one in wanted.keys() - {link.held for link in links}}
        links += _from_graphs(tensors, missing)
    missing = {one: wanted[one] for one in wanted.keys() - {link.held for link in links}}
    if missing:
        links += _from_unlisted(missing, {*skip, id(missing), id(wanted)})
    return links


def live_tensors() -> list[Any]:
    """All tensors that Python knows of."""
    import torch

    # By the id of the type: its own hash may be a metaclass's of the program.
    is_tensor: dict[int, bool] = {}
    found = []
    for one in gc.get_objects():
        kind = type(one)
        known = is_tensor.get(id(kind))
        if known is None:
            known = is_tensor[id(kind)] = issubclass(kind, torch.Tensor)
        if known:
            found.append(one)
    return found


def _from_tensors(tensors: list[Any], wanted: dict[int, object]) -> Iterator[Link]:
    """Gradients, and the tensors that views look into."""
    if not any(graphs.is_tensor(one) for one in wanted.values()):
        return
    for tensor in tensors:
        gradient = graphs.gradient_of(tensor)
        if gradient is not None and id(gradient) in wanted:
            yield Link(tensor, id(gradient), ".grad")
        base = graphs.base_of(tensor)
        if base is not None and id(base) in wanted:
            yield Link(tensor, id(base), "._base")


def _from_graphs(tensors: list[Any], wanted: dict[int, object]) -> Iterator[Link]:
    """What nodes have saved, and nodes of the user's own functions."""
    walk = graphs.Walk(NODE_LIMIT)
    for tensor in tensors:
        root = graphs.grad_fn_of(tensor)
        if root is None:
            continue
        for node in walk.nodes([root]):
            if not wanted:
                return
            if wanted.pop(id(node), None) is not None:
                yield Link(tensor, id(node), ".grad_fn" if node is root else ".grad_fn → …")
            for name, kept in walk.saved_by(node):
                if wanted.pop(id(kept), None) is not None:
                    saver = f"{name!r} saved by {type_name(type(node))}"
                    yield Link(tensor, id(kept), f".grad_fn → {saver}")


def _from_unlisted(wanted: dict[int, object], skip: Collection[int]) -> Iterator[Link]:
    """Arrays of objects, and the dicts and tuples that the collector does not list."""
    for container in unlisted(gc.get_objects(), skip):
        for one in wanted.keys() & set(map(id, container.contents)):
            yield Link(container.thing, one, "")
