"""The holders of objects: reference chains from the program's own names to each of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from profkit.capture.memory.holders import chain_names
from profkit.capture.memory.holders.autograd_cycles import AutogradCycle, find_cycle_above
from profkit.capture.memory.holders.forward_search import search_forward
from profkit.capture.memory.holders.links import is_a
from profkit.capture.memory.holders.roots import Root
from profkit.capture.memory.holders.search import ReferenceGraph, Search
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


def find_chains(
    targets: Sequence[object],
    *,
    skip: Collection[int] = (),
    limit: int = 3,
    budget_s: float = BUDGET_S,
) -> list[tuple[Chain, ...]]:
    """Find the reference chains to each target, as :func:`find_holdings` does."""
    holdings = find_holdings(targets, skip=skip, limit=limit, budget_s=budget_s)
    return [holding.chains for holding in holdings]


def find_holdings(
    targets: Sequence[object],
    *,
    skip: Collection[int] = (),
    limit: int = 3,
    budget_s: float = BUDGET_S,
    n_references: Mapping[int, int] | None = None,
) -> list[Holding]:
    """Find the holders of each target, or the autograd reference cycle that keeps it alive.

    Every object that refers to a target directly yields the shortest chain from a root to it, and
    others that are as short: cutting the chain's last link removes that holder. A target that only
    unreachable cycles keep alive has no chain.

    Args:
        targets: The objects. The sequence itself is not a holder.
        skip: Ids of the caller's objects, which are not holders either.
        limit: Chains wanted for each target.
        budget_s: CPU seconds after which the search stops with what it has.
        n_references: How many references the program has to each target, by id, if known. Then the
            search goes forward first, which takes milliseconds and mostly finds them all.

    Returns:
        One holding for each target. Chains that start in the program come before those that start
        in a library, lasting holders before a variable that is a tensor itself, and among those
        the shortest first. A cycle refers to objects of the program: release it soon.
    """
    graph = None if n_references is None else search_forward(targets, skip, n_references)
    if graph is None:
        graph = Search(targets, skip, limit, budget_s).run()

    holdings = []
    for target in map(id, targets):
        chains = _name_chains(graph, target, limit)
        holdings.append(Holding(chains, None if chains else find_cycle_above(graph, target)))

    # It refers to objects of the program, as the cached locals of running functions do.
    del graph
    frames.clear_cached_locals()
    return holdings


def _name_chains(graph: ReferenceGraph, target: int, limit: int) -> tuple[Chain, ...]:
    chains: dict[tuple[str, ...], Chain] = {}
    for root, path in sorted(_find_paths(graph, target), key=_rank):
        chain = chain_names.render_chain(path, root, graph.labels)
        chains.setdefault(chain.parts, chain)
        if len(chains) == limit:
            break
    return tuple(chains.values())


def _rank(path: _Path) -> tuple[int, bool, bool, int]:
    """Rank the program's own holders first, then the longest-lived, then the nearest.

    A variable that is a tensor itself, such as the loss, is a new tensor in the next step; what it
    keeps alive is also kept by something that lasts from step to step. An argument, such as
    ``self``, is less informative than the caller's own name for it.
    """
    root, things = path
    distance = 2 if root.kind == "unknown" else int(root.is_library)
    is_step_local = root.kind == "frame" and is_a(things[0], "torch", "Tensor")
    return distance, is_step_local, root.is_argument, len(things)


def _find_paths(graph: ReferenceGraph, target: int) -> Iterator[_Path]:
    """Find paths from a root to a target: directly, and through each direct holder."""
    root = graph.roots.get(target)
    if root is not None:
        yield root, [graph.nodes[target]]
    for holder in graph.referrers.get(target, ()):
        for holding_root, things in _find_best_paths(graph, holder, target):
            yield holding_root, [*things, graph.nodes[target]]


def _find_best_paths(graph: ReferenceGraph, holder: int, target: int) -> list[_Path]:
    """Find the best paths from roots to a holder of a target that do not pass the target.

    Several are equally good where variables share a container, as the two iterators of
    ``itertools.tee`` do.
    """
    below: dict[int, int | None] = {holder: None}
    pending = [holder]
    best: list[_Path] = []

    def consider(top: int, things: list[object]) -> None:
        """Keep the path from an object above the holder if that is a root and none beats it."""
        root = graph.roots.get(top)
        if root is None:
            return
        path = root, things
        if not best or _rank(path) < _rank(best[0]):
            best[:] = [path]
        elif _rank(path) == _rank(best[0]):
            best.append(path)

    consider(holder, [graph.nodes[holder]])
    # Breadth first: the list grows while it is read.
    for identity in pending:
        for parent in graph.referrers.get(identity, ()):
            if parent == target:
                continue
            # A module's variables are all held by one dict: each way there is a path of its own.
            if parent in graph.roots:
                consider(parent, [graph.nodes[parent], *_follow_down(graph, below, identity)])
            if parent not in below:
                below[parent] = identity
                pending.append(parent)
    return best


def _follow_down(graph: ReferenceGraph, below: dict[int, int | None], top: int) -> list[object]:
    """Return the objects from one above a holder down to the holder."""
    path = []
    identity: int | None = top
    while identity is not None:
        path.append(graph.nodes[identity])
        identity = below[identity]
    return path
