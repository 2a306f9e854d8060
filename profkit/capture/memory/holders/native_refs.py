"""References between objects that Python's garbage collector does not see.

A tensor's gradient, base and graph are held in C++, and so is what ``torch.func`` wraps. Object
arrays, and dicts and tuples whose contents cannot be part of a cycle, are not tracked. A task of
asyncio shows its result to ``gc.get_referents``, but not to ``gc.get_referrers``. Each is found by
a pass forward over all objects, made only when a search backward reaches an object without
referrers. So is the path to objects that the program froze with ``gc.freeze()``, which hides them
from ``gc.get_referrers``.

Source: ``gc.freeze`` of Python's library reference; ``TaskObj_traverse`` in CPython's
``Modules/_asynciomodule.c``, which ignores what the visit of its future returns.
"""

import gc
import sys
from collections.abc import Collection, Iterator
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.attributes import namespace_of, result_of, type_name
from profkit.capture.memory.holders.untracked_containers import (
    find_untracked,
    live_tensors,
    referrers_of,
)
from profkit.capture.process.frames import local_values
from profkit.capture.process.objects import has_frozen_objects, instances, referents, type_ids
from profkit.capture.source.files import PROFKIT_FOLDER

NODE_LIMIT: Final = 60_000
"""Graph nodes searched at once: about half a second."""

FROZEN_LIMIT: Final = 2_000_000
"""Objects visited on the way to frozen ones: a few seconds."""

_NEWEST: Final = 32
"""Newest tensors among which those that a Python object holds are searched."""
_HEADS: Final = 3
"""Number of newest tensors whose names are preferred."""


class NativeRef(NamedTuple):
    """One object holding another.

    Attributes:
        held: Id of the object that is held.
        label: The reference as text, after the holder's own; empty for an ordinary container.
    """

    holder: object
    held: int
    label: str


def find_native_refs(wanted: dict[int, object], skip: Collection[int]) -> list[NativeRef]:
    """Find the references to some objects, by id, that the garbage collector does not see.

    Args:
        skip: Ids of objects that are not holders.
    """
    refs: list[NativeRef] = []
    if "torch" in sys.modules:
        tensors = [tensor for tensor in live_tensors() if id(tensor) not in skip]
        tensors += _gradients_with_graphs(tensors)
        refs += _from_tensors(tensors, wanted)
        missing = _without_known(wanted, refs)
        refs += _from_graphs(tensors, missing, {*skip, id(missing), id(wanted)})

    # These take a pass over all objects each, or more.
    missing = _without_known(wanted, refs)
    if missing:
        skip = {*skip, id(missing), id(wanted)}
        refs += _from_tasks(missing)
        refs += _from_untracked(missing, skip)
        refs += _from_frozen(missing.keys() - {ref.held for ref in refs}, skip)
    return refs


def _without_known(wanted: dict[int, object], refs: list[NativeRef]) -> dict[int, object]:
    """Return the objects of which no holder is known yet."""
    return {identity: wanted[identity] for identity in wanted.keys() - {ref.held for ref in refs}}


def _gradients_with_graphs(tensors: list[Any]) -> list[Any]:
    """Return gradients with a graph whose Python objects did not exist before this access."""
    tensor_ids = set(map(id, tensors))
    gradients = [autograd_graphs.gradient_of(tensor) for tensor in tensors]
    new = [
        gradient
        for gradient in gradients
        if gradient is not None and id(gradient) not in tensor_ids
    ]
    return [gradient for gradient in new if autograd_graphs.grad_fn_of(gradient) is not None]


def _from_tensors(tensors: list[Any], wanted: dict[int, object]) -> Iterator[NativeRef]:
    """Find references to gradients, to the bases of views, and to what ``torch.func`` wraps."""
    if not any(autograd_graphs.is_tensor(thing) for thing in wanted.values()):
        return
    readers = (
        (autograd_graphs.gradient_of, ".grad"),
        (autograd_graphs.base_of, "._base"),
        (autograd_graphs.wrapped_by, " → the tensor in it"),
    )
    for tensor in tensors:
        for read, label in readers:
            held = read(tensor)
            if held is not None and id(held) in wanted:
                yield NativeRef(tensor, id(held), label)


def _from_graphs(
    tensors: list[Any], wanted: dict[int, object], skip: set[int]
) -> Iterator[NativeRef]:
    """Find references to saved values, and to nodes of custom functions."""
    roots = [(tensor, node) for tensor in tensors if (node := autograd_graphs.grad_fn_of(tensor))]
    if not roots or not wanted:
        return

    roots.sort(key=lambda root: -(autograd_graphs.sequence_nr_of(root[0]) or 0))
    skip |= {id(tensors), *map(id, roots)}

    # If one graph is part of another, prefer a name that the program still uses: that of the
    # newest tensors that a Python object holds.
    for tensor, node in _held_in_python(roots[:_NEWEST], skip)[:_HEADS]:
        yield from _from_graph(
            tensor, node, autograd_graphs.GraphWalk(NODE_LIMIT // _HEADS), wanted
        )

    walk = autograd_graphs.GraphWalk(NODE_LIMIT)
    for tensor, node in roots:
        yield from _from_graph(tensor, node, walk, wanted)


def _held_in_python(roots: list[tuple[Any, Any]], skip: set[int]) -> list[tuple[Any, Any]]:
    """Return the tensors, with their nodes, that a Python object or a local variable holds."""
    held = set(map(id, local_values()))
    for referrer in referrers_of(tensor for tensor, _ in roots):
        if id(referrer) not in skip and type(referrer) is not FrameType:
            held.update(map(id, referents(referrer)))
    return [(tensor, node) for tensor, node in roots if id(tensor) in held]


def _from_graph(
    tensor: object, root: object, walk: autograd_graphs.GraphWalk, wanted: dict[int, object]
) -> Iterator[NativeRef]:
    """Find references from the graph behind one tensor to wanted objects."""
    for node in walk.walk([root]):
        if id(node) in wanted:
            yield NativeRef(tensor, id(node), ".grad_fn" if node is root else ".grad_fn → …")
        for name, saved in walk.saved_values(node):
            saver = f"{name!r} saved by {type_name(type(node))}"
            if id(saved) in wanted:
                yield NativeRef(tensor, id(saved), f".grad_fn → {saver}")
            base = autograd_graphs.base_of(saved) if autograd_graphs.is_tensor(saved) else None
            if base is not None and id(base) in wanted:
                yield NativeRef(tensor, id(base), f".grad_fn → the base of {saver}")


def _from_tasks(wanted: dict[int, object]) -> Iterator[NativeRef]:
    """Find references of asyncio's tasks to their results, exceptions and callbacks."""
    module: Any = sys.modules.get("_asyncio")
    if module is None:
        return
    future_type: Any = module.Future
    for task in instances(gc.get_objects(), type_ids(future_type)):
        for held in referents(task):
            if id(held) in wanted:
                yield NativeRef(task, id(held), ".result()" if result_of(task) is held else "")


def _from_untracked(wanted: dict[int, object], skip: Collection[int]) -> Iterator[NativeRef]:
    """Find references from containers that the collector does not track."""
    ids = frozenset(wanted)
    for container, contents in find_untracked(gc.get_objects(), skip, ids):
        for identity in ids.intersection(map(id, contents)):
            yield NativeRef(container, identity, "")


def _from_frozen(wanted: Collection[int], skip: Collection[int]) -> Iterator[NativeRef]:
    """Find the shortest path forward to each object, from modules and local variables.

    Made only if the program has frozen objects; the last link of each path first.
    """
    if not has_frozen_objects():
        return

    missing = set(wanted)
    things: list[object] = [*_module_namespaces(), *local_values()]
    holder_of: dict[int, int | None] = dict.fromkeys([*map(id, things), *skip])

    # Breadth first: the list grows while it is read.
    for index, thing in enumerate(things):
        for held in referents(thing):
            if id(held) in holder_of:
                continue
            holder_of[id(held)] = index
            if id(held) in missing:
                missing.discard(id(held))
                yield from _follow_back(things, holder_of, id(held))
            if gc.is_tracked(held):
                things.append(held)
        if not missing or len(things) > FROZEN_LIMIT:
            return


def _module_namespaces() -> Iterator[object]:
    for module in list(sys.modules.values()):
        namespace = namespace_of(module) if issubclass(type(module), ModuleType) else None
        if namespace is not None and not str(namespace.get("__file__")).startswith(PROFKIT_FOLDER):
            yield namespace


def _follow_back(
    things: list[object], holder_of: dict[int, int | None], held: int
) -> Iterator[NativeRef]:
    """Yield the links of a path that was searched breadth first, the last one first."""
    index = holder_of[held]
    while index is not None:
        yield NativeRef(things[index], held, "")
        held = id(things[index])
        index = holder_of[held]
