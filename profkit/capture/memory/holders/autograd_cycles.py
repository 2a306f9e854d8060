"""Rings that autograd closes, which no garbage collector frees.

A gradient that has a graph leads to its parameter, which holds the gradient. A tensor that an
operator keeps on its own ``ctx`` holds the operator's node, which holds the tensor. Such links are
torch's own: Python's collector does not see them and counts what they hold as reached. Nothing
else needs to hold the ring.

Source: the warning that ``torch.autograd.backward`` gives where ``create_graph`` is true; "Saving
intermediates" of PyTorch's notes on extending it.
"""

from collections import deque
from typing import Final, NamedTuple

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.attributes import namespace_of, type_name
from profkit.capture.memory.holders.search import Found

_STARTS: Final = 64
"""Objects above one that nobody holds from which a ring is looked for, the nearest first."""

_GRADIENT: Final = ".grad"
_SAVED_BY: Final = " saved by "


class AutogradCycle(NamedTuple):
    """A ring that holds something, through at least one link of torch's.

    Attributes:
        words: What it goes through, the first repeated at the end: ``Parameter.grad``,
            ``Tensor.grad_fn``, ``AccumulateGrad``.
        closed_by: A tensor of it that has a graph: a gradient, where there is one; or None.
    """

    words: tuple[str, ...]
    closed_by: object | None


def cycle_above(found: Found, target: int) -> AutogradCycle | None:
    """The shortest ring that holds something which no root does.

    Args:
        found: What a search has found.
        target: Id of the thing.

    Returns:
        The ring; None where a root is known, where the search has not come to its end, and where
        Python's own references alone close it, which its collector sees.
    """
    above = _above(found, target)
    if not found.is_exact or any(one in found.roots for one in above):
        return None
    rings = (_through(found, start) for start in above[:_STARTS])
    closed = [ring for ring in rings if _is_of_torch(found, ring)]
    if not closed:
        return None
    shortest = min(closed, key=len)
    return AutogradCycle(_words(found, shortest), _closed_by(found, shortest))


def _above(found: Found, target: int) -> list[int]:
    """Everything that leads to a thing, the thing itself included, the nearest first."""
    above = {target: None}
    pending = deque(above)
    while pending:
        for holder in found.up.get(pending.popleft(), ()):
            if holder not in above:
                above[holder] = None
                pending.append(holder)
    return list(above)


def _through(found: Found, start: int) -> list[int]:
    """A shortest ring through an object, each holding the next one; empty without one."""
    held_by: dict[int, int] = {}
    pending = deque([start])
    while pending:
        one = pending.popleft()
        for holder in found.up.get(one, ()):
            if holder in held_by:
                continue
            held_by[holder] = one
            if holder == start:
                return _downward(held_by, start)
            pending.append(holder)
    return []


def _downward(held_by: dict[int, int], start: int) -> list[int]:
    ring = [start]
    while (following := held_by[ring[-1]]) != start:
        ring.append(following)
    return ring


def _links(found: Found, ring: list[int]) -> list[tuple[object, str]]:
    """Each object of a ring, and what torch calls its link to the next one."""
    following = [*ring[1:], *ring[:1]]
    return [
        (found.nodes[one], found.labels.get((one, held), ""))
        for one, held in zip(ring, following, strict=True)
    ]


def _is_of_torch(found: Found, ring: list[int]) -> bool:
    return any(label for _, label in _links(found, ring))


def _words(found: Found, ring: list[int]) -> tuple[str, ...]:
    links = _links(found, ring)
    words: list[str] = []
    for place, (thing, label) in enumerate(links):
        if type(thing) is dict and namespace_of(links[place - 1][0]) is thing:
            continue  # It only holds the attributes of the one before.
        attribute, _, kept = label.partition(" → ")
        words.append(f"{type_name(type(thing))}{attribute}")
        if _SAVED_BY in kept:
            words.append(kept.rpartition(_SAVED_BY)[2])
    first = min(range(len(words)), key=lambda n: (not words[n].endswith(_GRADIENT), words[n]))
    return (*words[first:], *words[:first], words[first])


def _closed_by(found: Found, ring: list[int]) -> object | None:
    """The gradient of a ring, or else any tensor of it that has a graph."""
    links = _links(found, ring)
    gradients = [links[place - 1][1] == _GRADIENT for place in range(len(links))]
    for is_wanted in (True, False):
        for (thing, _), is_gradient in zip(links, gradients, strict=True):
            if is_gradient is is_wanted and autograd_graphs.grad_fn_of(thing) is not None:
                return thing
    return None
