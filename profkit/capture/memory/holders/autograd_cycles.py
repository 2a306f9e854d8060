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
from profkit.capture.memory.holders.reference_cycles import shortest_cycle
from profkit.capture.memory.holders.search import Found

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


def cycle_above(found: Found, target: int) -> AutogradCycle | None:
    """The shortest autograd reference cycle that keeps alive an object without a root.

    Returns:
        None if a root is known, if the search stopped at a limit, or if Python references alone
        close the cycle, which its garbage collector frees.
    """
    above = list(found.above(target))
    if not found.is_exact or any(one in found.roots for one in above):
        return None
    # Searched upward, so reversed: each object then holds the next one.
    upward = (shortest_cycle(one, lambda n: found.up.get(n, ())) for one in above[:_MAX_STARTS])
    cycles = [_links(found, cycle[:1] + cycle[:0:-1]) for cycle in upward]
    native = [links for links in cycles if any(label for _, label in links)]
    if not native:
        return None
    links = min(native, key=len)
    return AutogradCycle(_names(links), _closed_by(links))


def _links(found: Found, cycle: list[int]) -> list[tuple[object, str]]:
    """Each object of a cycle, and the label of its reference to the next; empty if in Python."""
    following = [*cycle[1:], *cycle[:1]]
    return [
        (found.nodes[one], found.labels.get((one, held), ""))
        for one, held in zip(cycle, following, strict=True)
    ]


def _names(links: list[tuple[object, str]]) -> tuple[str, ...]:
    names: list[str] = []
    for index, (thing, label) in enumerate(links):
        if type(thing) is dict and namespace_of(links[index - 1][0]) is thing:
            continue  # the attributes of the object before
        attribute, _, saved = label.partition(" → ")
        names.append(f"{type_name(type(thing))}{attribute}")
        if _SAVED_BY in saved:
            names.append(saved.rpartition(_SAVED_BY)[2])
    first = min(range(len(names)), key=lambda n: (not names[n].endswith(_GRADIENT), names[n]))
    return (*names[first:], *names[:first], names[first])


def _closed_by(links: list[tuple[object, str]]) -> object | None:
    """A gradient of the cycle, or else any tensor of it that has a graph."""
    is_gradient = [links[index - 1][1] == _GRADIENT for index in range(len(links))]
    for wanted in (True, False):
        for (thing, _), is_one in zip(links, is_gradient, strict=True):
            if is_one is wanted and autograd_graphs.grad_fn_of(thing) is not None:
                return thing
    return None
