"""The holders of objects: reference chains from the program's own names to each of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from profkit.capture.memory.holders import chain_names
from profkit.capture.memory.holders.autograd_cycles import AutogradCycle, cycle_above
from profkit.capture.memory.holders.forward_search import found_forward
from profkit.capture.memory.holders.links import is_a
from profkit.capture.memory.holders.roots import Root
from profkit.capture.memory.holders.search import Found, Search
from profkit.capture.process import frames
from profkit.model.live_memory import Chain

BUDGET_S: Final = 2.0
"""CPU seconds of a search among millions of objects; smaller programs take milliseconds."""

_Path = tuple[Root, list[object]]


class Holding(NamedTuple):
    """What keeps an object alive.

    Attributes:
        cycle: The autograd reference cycle that alone keeps it alive, or None.
    """

    chains: tuple[Chain, ...]
    cycle: AutogradCycle | None


def chains(
    targets: Sequence[object],
    *,
    own: Collection[int] = (),
    limit: int = 3,
    budget_s: float = BUDGET_S,
) -> list[tuple[Chain, ...]]:
    """The reference chains to each target, as :func:`holdings` returns them."""
    return [one.chains for one in holdings(targets, own=own, limit=limit, budget_s=budget_s)]


def holdings(
    targets: Sequence[object],
    *,
    own: Collection[int] = (),
    limit: int = 3,
    budget_s: float = BUDGET_S,
    n_references: Mapping[int, int] | None = None,
) -> list[Holding]:
    """The holders of each target, or the autograd reference cycle that keeps it alive.

    Every object that refers to a target directly yields one chain, the shortest from a root to it:
    cutting the chain's last link removes that holder. A target that only unreachable cycles keep
    alive has no chain.

    Args:
        targets: The objects. The sequence itself is not a holder.
        own: Ids of the caller's objects, which are not holders either.
        limit: Chains wanted for each target.
        budget_s: CPU seconds after which the search stops with what it has.
        n_references: How many references the program has to each target, by id, if known. Then the
            search goes forward first, which takes milliseconds and mostly finds them all.

    Returns:
        One holding for each target. Chains that start in the program come before those that start
        in a library, lasting holders before a variable that is a tensor itself, and among those
        the shortest first. A cycle refers to objects of the program: release it soon.
    """
    found = None if n_references is None else found_forward(targets, own, n_references)
    if found is None:
        found = Search(targets, own, limit, budget_s).run()
    results = []
    for target in map(id, targets):
        named = _chains_of(found, target, limit)
        results.append(Holding(named, None if named else cycle_above(found, target)))
    del found
    frames.clear_cached_locals()
    return results


def _chains_of(found: Found, target: int, limit: int) -> tuple[Chain, ...]:
    named: dict[tuple[str, ...], Chain] = {}
    for root, path in sorted(_paths(found, target), key=_rank):
        chain = chain_names.chain(path, root, found.labels)
        named.setdefault(chain.parts, chain)
        if len(named) == limit:
            break
    return tuple(named.values())


def _rank(path: _Path) -> tuple[int, bool, bool, int]:
    """The program's own holders first, then the longest-lived, then the nearest.

    A variable that is a tensor itself, such as the loss, is a new tensor in the next step; what it
    keeps alive is also kept by something that lasts from step to step. An argument, such as
    ``self``, is less informative than the caller's own name for it.
    """
    root, things = path
    distance = 2 if root.kind == "unknown" else int(root.is_library)
    is_step_local = root.kind == "frame" and is_a(things[0], "torch", "Tensor")
    return distance, is_step_local, root.is_argument, len(things)


def _paths(found: Found, target: int) -> Iterator[_Path]:
    """Paths from a root to a target: directly, and through each direct holder."""
    root = found.roots.get(target)
    if root is not None:
        yield root, [found.nodes[target]]
    for holder in found.up.get(target, ()):
        path = _path_to(found, holder, target)
        if path is not None:
            yield path[0], [*path[1], found.nodes[target]]


def _path_to(found: Found, holder: int, target: int) -> _Path | None:
    """The best path from a root to a holder of a target, without passing through the target."""
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
