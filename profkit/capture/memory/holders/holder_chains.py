"""Who holds an object: the chains from the program's own names to it."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from profkit.capture.memory.holders import chain_names, frames
from profkit.capture.memory.holders.autograd_cycles import AutogradCycle, cycle_above
from profkit.capture.memory.holders.roots import Root
from profkit.capture.memory.holders.search import Found, Search
from profkit.capture.memory.holders.torch_links import is_a
from profkit.model.live_memory import Chain

BUDGET_S: Final = 2.0
"""Seconds of work of a search among millions of objects; others take milliseconds."""

_Path = tuple[Root, list[object]]


class Holding(NamedTuple):
    """What keeps an object.

    Attributes:
        chains: Who holds it, as :func:`chains` gives them.
        ring: The ring of autograd's that alone keeps it, or None.
    """

    chains: tuple[Chain, ...]
    ring: AutogradCycle | None


def chains(
    targets: Sequence[object],
    *,
    own: Collection[int] = (),
    limit: int = 3,
    budget_s: float = BUDGET_S,
) -> list[tuple[Chain, ...]]:
    """Who holds each of some objects.

    Every object that refers to a target directly gives one chain, the shortest that leads to it
    from a name: cutting its last link cuts that holder off. A target that only unreachable cycles
    hold has none.

    Args:
        targets: The objects. The sequence itself is no holder.
        own: Ids of the caller's objects, which are no holders either.
        limit: Chains wanted of each target.
        budget_s: Seconds of work after which the search stops with what it has.

    Returns:
        The chains of each target: those that begin in the program before those that begin in a
        library, what the program keeps before a variable that is a tensor itself, and among
        those the shortest first.
    """
    return [one.chains for one in holdings(targets, own=own, limit=limit, budget_s=budget_s)]


def holdings(
    targets: Sequence[object],
    *,
    own: Collection[int] = (),
    limit: int = 3,
    budget_s: float = BUDGET_S,
) -> list[Holding]:
    """Who holds each of some objects, and which of autograd's rings keeps those that nobody holds.

    Args:
        targets: The objects. The sequence itself is no holder.
        own: Ids of the caller's objects, which are no holders either.
        limit: Chains wanted of each target.
        budget_s: Seconds of work after which the search stops with what it has.

    Returns:
        What keeps each target. A ring refers to objects of the program: let go of it soon.
    """
    found = Search(targets, own, limit, budget_s).run()
    kept = [_holding(found, id(target), limit) for target in targets]
    del found
    frames.forget_locals()
    return kept


def _holding(found: Found, target: int, limit: int) -> Holding:
    named = _chains_of(found, target, limit)
    return Holding(named, None if named else cycle_above(found, target))


def _chains_of(found: Found, target: int, limit: int) -> tuple[Chain, ...]:
    named: dict[tuple[str, ...], Chain] = {}
    for root, path in sorted(_paths(found, target), key=_rank):
        chain = chain_names.chain(path, root, found.labels)
        named.setdefault(chain.parts, chain)
        if len(named) == limit:
            break
    return tuple(named.values())


def _rank(path: _Path) -> tuple[int, bool, bool, int]:
    """The program's own first, then what it keeps longest, then the nearest.

    A variable that is a tensor itself, such as the loss, is a new tensor in the next step; what
    it holds is held by what the program keeps from step to step. And an argument, such as
    ``self``, is passed by somebody whose own name for it says more.
    """
    root, things = path
    is_of_a_step = root.kind == "frame" and is_a(things[0], "torch", "Tensor")
    return _distance_from_program(root), is_of_a_step, root.is_lent, len(things)


def _distance_from_program(root: Root) -> int:
    if root.kind == "unknown":
        return 2
    return 1 if root.is_library else 0


def _paths(found: Found, target: int) -> Iterator[_Path]:
    """From a root to a target: through no holder at all, and through each direct one."""
    root = found.roots.get(target)
    if root is not None:
        yield root, [found.nodes[target]]
    for holder in found.up.get(target, ()):
        path = _path_to(found, holder, target)
        if path is not None:
            yield path[0], [*path[1], found.nodes[target]]


def _path_to(found: Found, holder: int, target: int) -> _Path | None:
    """The best path from a root to a holder of a target, that does not go through the target."""
    below: dict[int, int | None] = {holder: None}
    pending = [holder]
    best: _Path | None = None
    for one in pending:
        root = found.roots.get(one)
        if root is not None:
            path = (root, _downward(found, below, one))
            if best is None or _rank(path) < _rank(best):
                best = path
        for parent in found.up.get(one, ()):
            if parent not in below and parent != target:
                below[parent] = one
                pending.append(parent)
    return best


def _downward(found: Found, below: dict[int, int | None], top: int) -> list[object]:
    path = []
    one: int | None = top
    while one is not None:
        path.append(found.nodes[one])
        one = below[one]
    return path
