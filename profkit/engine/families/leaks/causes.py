"""Assigns each leak to the one rule that reports it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from profkit.engine.context import Context
from profkit.model.growth import together
from profkit.model.leak_bytes import (
    graph_bytes,
    node_per_step_bytes,
    saved_per_step_bytes,
    total_bytes,
    total_per_step_bytes,
)
from profkit.model.live_memory import Chain, Leak, limit_together
from profkit.patterns import regex

Cause = Literal[
    "retained-graph", "growing-container", "forgotten-hook", "uncollected-cycle",
    "kept-traceback", "unbounded-cache", "host-growth", "pinned-growth",
]  # fmt: skip
"""Why memory grows, by the name of the rule that reports it."""

_GRAPH_SHARE: Final = 0.1
"""A graph with a smaller share of a leak is not its cause."""
_MOSTLY_GRAPH_SHARE: Final = 0.5
"""If the graph is a larger share of a cache, the graph is what to release first."""
_BY_HOLDER: Final[dict[str, Cause]] = {
    "traceback": "kept-traceback",
    "hook": "forgotten-hook",
    "cache": "unbounded-cache",
}
_CACHE_NAMES: Final = frozenset({"cache", "caches", "cached", "memo", "memos", "memoized"})
_WORD: Final = regex(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ATTRIBUTE: Final = regex(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_ENTRIES: Final = regex(r"(?:\[[^\[\]]*\])+$")
_LAST_NAME: Final = regex(r"(?<!\w)(\w+)\W*$")


def find_leaks(ctx: Context, cause: str) -> list[tuple[Leak, ...]]:
    """Return the leaks of one cause by holder, the most bytes per step first.

    Args:
        cause: The name of the rule that reports them.

    Returns:
        One group for each holder. Its first leak has the cause, and of those the most bytes.
    """
    leaks = ctx.live.leaks if ctx.live is not None else ()
    groups = [
        tuple(
            sorted(group, key=lambda leak: (cause_of(leak) != cause, -total_per_step_bytes(leak)))
        )
        for group in _group_by_holder(leaks)
        if _cause_of_group(group) == cause
    ]
    return sorted(groups, key=lambda group: -sum(map(total_per_step_bytes, group)))


def _group_by_holder(leaks: Sequence[Leak]) -> list[list[Leak]]:
    """Group leaks that have an owner or a graph in common, directly or through another leak."""
    groups: list[tuple[set[object], list[Leak]]] = []
    for leak in leaks:
        on_line = _find_on_line(leak, leaks)
        keys = {id(leak), *_find_holder_keys(leak)} | ({id(on_line)} if on_line else set())
        joined = [group for group in groups if group[0] & keys]
        groups = [group for group in groups if not group[0] & keys]
        for other_keys, _ in joined:
            keys |= other_keys
        groups.append((keys, [*(part for _, parts in joined for part in parts), leak]))
    return [parts for _, parts in groups]


def _find_holder_keys(leak: Leak) -> set[object]:
    """Return what leaks of the same holder have in common; nothing if the holder is unknown.

    The attributes of an object, such as the predictions and targets of a metric, are one holder,
    and so are all that hold the same graph: it is freed only when each of them is changed.
    """
    keys: set[object] = set()
    if leak.graph is not None and leak.graph.number:
        keys.add(leak.graph.number)

    chain = main_chain(leak)
    if chain is not None and chain.kind != "unknown" and chain.name:
        device = "cpu" if leak.device == "host" else leak.device
        is_garbage = leak.kind == "garbage"
        keys.add((is_garbage, device, _owner_name(chain), chain.scope))
    return keys


def _find_on_line(objects: Leak, leaks: Iterable[Leak]) -> Leak | None:
    """Return the tensors that the same line allocates as objects without a holder, or None."""
    if objects.kind != "host" or objects.chains or not objects.stack:
        return None
    # Traced objects have no function.
    file, line = objects.stack[0].file, objects.stack[0].line
    with_line = (leak for leak in leaks if leak.kind == "tensors" and leak.stack)
    return next(
        (leak for leak in with_line if (leak.stack[0].file, leak.stack[0].line) == (file, line)),
        None,
    )


def _owner_name(chain: Chain) -> str:
    """Return the name of what grows, of an attribute its object, of an entry its container."""
    name = without_entries(chain.name)
    # A module or class has attributes of any purpose, and those of a library are its own matter.
    is_attribute = chain.kind == "instance" and _ATTRIBUTE.fullmatch(name) is not None
    return name.rpartition(".")[0] if is_attribute and not chain.is_library else name


def without_entries(name: str) -> str:
    """Return the container's name of the name of an entry: ``log`` of ``log['loss'][3]``."""
    return _ENTRIES.sub("", name) or name


def _cause_of_group(group: Sequence[Leak]) -> Cause:
    """Return the cause of all leaks of one holder.

    Nobody retains graphs on purpose, so that those count before other tensors of the same holder.
    """
    per_step: dict[Cause, int] = {}
    for leak in group:
        cause = cause_of(leak)
        per_step[cause] = per_step.get(cause, 0) + total_per_step_bytes(leak)

    is_beside_tensors = per_step.keys() <= {"retained-graph", "growing-container", "host-growth"}
    if is_beside_tensors and "retained-graph" in per_step:
        if per_step["retained-graph"] >= _GRAPH_SHARE * sum(per_step.values()):
            return "retained-graph"
        del per_step["retained-graph"]
    return max(per_step, key=per_step.__getitem__)


def merge_leaks(group: tuple[Leak, ...]) -> Leak:
    """Merge the leaks of one holder, with the allocation site of the first.

    Args:
        group: Leaks of one holder, those of its cause first, and of these the most bytes.
    """
    largest = group[0]
    graphs = [leak.graph for leak in group if leak.graph is not None]

    return replace(
        largest,
        per_step_bytes=sum(leak.per_step_bytes for leak in group),
        bytes=sum(leak.bytes for leak in group),
        n=sum(leak.n for leak in group if leak.kind == largest.kind),
        first_step=min(leak.first_step for leak in group),
        last_step=max(leak.last_step for leak in group),
        graph=max(graphs, key=graph_bytes, default=None),
        nodes_per_step=sum(leak.nodes_per_step for leak in group),
        shape=largest.shape if len({leak.shape for leak in group}) == 1 else None,
        growth=together(leak.growth for leak in group),
        limit_bytes=limit_together(group),
    )


def cause_of(leak: Leak) -> Cause:
    """Return the cause of a leak: what most likely has to change.

    The holder of an object counts before the graph of the object: a tensor in the frame of a
    retained exception usually has a graph, and both are freed with the exception.
    """
    chain = main_chain(leak)
    if (
        leak.kind not in {"garbage", "native", "workers"}
        and chain is not None
        and leak.limit_bytes is None
    ):
        if chain.kind in _BY_HOLDER:
            return _BY_HOLDER[chain.kind]
        if is_named_cache(chain) and graph_share(leak) < _MOSTLY_GRAPH_SHARE:
            return "unbounded-cache"
    return _by_itself(leak)


def _by_itself(leak: Leak) -> Cause:
    """Return the cause of a leak whose holder does not determine it."""
    if leak.kind == "garbage":
        return "uncollected-cycle"
    if leak.kind in {"host", "native", "workers"}:
        return "host-growth"
    if leak.device == "pinned":
        return "pinned-growth"
    return "retained-graph" if graph_share(leak) >= _GRAPH_SHARE else "growing-container"


def main_chain(leak: Leak) -> Chain | None:
    """Return the reference chain to report: the shortest with a known root, else the shortest."""
    rooted = (chain for chain in leak.chains if chain.kind != "unknown")
    return next(rooted, leak.chains[0] if leak.chains else None)


def graph_share(leak: Leak) -> float:
    """Return the share of a leak that is its autograd graph, nodes included; 0 to 1."""
    if leak.kind == "graph":
        return 1.0
    if leak.graph is None:
        return 0.0
    if leak.nodes_per_step and leak.graph.n_nodes:
        graph_per_step = saved_per_step_bytes(leak) + node_per_step_bytes(leak)
        return min(graph_per_step / max(total_per_step_bytes(leak), 1), 1.0)
    retained_bytes = graph_bytes(leak.graph)
    own_bytes = max(leak.bytes - leak.graph.saved_bytes, 0)
    return retained_bytes / (retained_bytes + own_bytes) if retained_bytes else 0.0


def saved_share(leak: Leak) -> float:
    """Return the share of a leak that its graph saves for a backward pass; 0 without a graph."""
    return 0.0 if leak.graph is None else leak.graph.saved_bytes / max(total_bytes(leak), 1)


def is_named_cache(chain: Chain) -> bool:
    """Return whether the user's name for a container says that it is a cache."""
    last = _LAST_NAME.search(chain.name)
    words = {word.lower() for word in _WORD.findall(last[1])} if last else set()
    return bool(words & _CACHE_NAMES)
