"""Autograd reference cycles, which no garbage collector frees.

A gradient that has a graph refers to its parameter, which holds the gradient. A tensor that a
custom function stores on its own ``ctx`` holds the function's node, which holds the tensor. Such
references are C++: Python's collector does not see them and treats what they hold as reachable.

Source: the warning of ``torch.autograd.backward`` with ``create_graph=True``; "Saving
intermediates" of PyTorch's notes on extending it.
"""

from typing import Final, NamedTuple

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.attributes import namespace_of, type_name
from profkit.capture.memory.holders.reference_cycles import find_shortest_cycle
from profkit.capture.memory.holders.search import ReferenceGraph

_MAX_STARTS: Final = 64
"""Objects above the target through which a cycle is searched, the nearest first."""

_GRADIENT: Final = ".grad"
_SAVED_BY: Final = " saved by "


class AutogradCycle(NamedTuple):
    """A reference cycle with at least one reference through C++.

    Attributes:
        names: What it goes through, the first repeated at the end: ``Parameter.grad``,
            ``Tensor.grad_fn``, ``AccumulateGrad``.
        closed_by: A tensor of the cycle that has a graph, preferably a gradient, or None.
    """

    names: tuple[str, ...]
    closed_by: object | None


def find_cycle_above(graph: ReferenceGraph, target: int) -> AutogradCycle | None:
    """Find the shortest autograd reference cycle that keeps alive an object without a root.

    Returns:
        None if a root is known, if the search stopped at a limit, or if Python references alone
        close the cycle, which its garbage collector frees.
    """
    above = list(graph.above(target))
    if not graph.is_exact or any(identity in graph.roots for identity in above):
        return None

    # Searched upward, so reversed: each object then holds the next one.
    upward = (
        find_shortest_cycle(identity, lambda n: graph.referrers.get(n, ()))
        for identity in above[:_MAX_STARTS]
    )
    cycles = [_links(graph, cycle[:1] + cycle[:0:-1]) for cycle in upward]

    # A cycle without labels has only references of Python, whose collector frees it.
    through_native = [links for links in cycles if any(label for _, label in links)]
    if not through_native:
        return None
    links = min(through_native, key=len)
    return AutogradCycle(_name_objects(links), _find_closing_tensor(links))


def _links(graph: ReferenceGraph, cycle: list[int]) -> list[tuple[object, str]]:
    """Return the objects of a cycle, each with the label of its reference to the next.

    The label is empty for a reference that Python sees.
    """
    held_ids = [*cycle[1:], *cycle[:1]]
    return [
        (graph.nodes[identity], graph.labels.get((identity, held_id), ""))
        for identity, held_id in zip(cycle, held_ids, strict=True)
    ]


def _name_objects(links: list[tuple[object, str]]) -> tuple[str, ...]:
    """Name what a cycle goes through, from the gradient on if there is one."""
    names: list[str] = []
    for index, (thing, label) in enumerate(links):
        if type(thing) is dict and namespace_of(links[index - 1][0]) is thing:
            continue  # the attributes of the object before
        attribute, _, saved = label.partition(" → ")
        names.append(f"{type_name(type(thing))}{attribute}")
        if _SAVED_BY in saved:
            names.append(saved.rpartition(_SAVED_BY)[2])

    # A cycle has no beginning: the same one begins alike in each report.
    first = min(range(len(names)), key=lambda n: (not names[n].endswith(_GRADIENT), names[n]))
    return (*names[first:], *names[:first], names[first])


def _find_closing_tensor(links: list[tuple[object, str]]) -> object | None:
    """Find a gradient of the cycle, or else any tensor of it that has a graph."""
    is_gradient = [links[index - 1][1] == _GRADIENT for index in range(len(links))]
    for wants_gradient in (True, False):
        for (thing, _), is_grad in zip(links, is_gradient, strict=True):
            if is_grad is wants_gradient and autograd_graphs.grad_fn_of(thing) is not None:
                return thing
    return None
