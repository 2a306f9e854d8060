"""Assigns each leak to the one rule that reports it."""

from dataclasses import replace
from typing import Final, Literal

from profkit.engine.context import Context
from profkit.model.growth import together
from profkit.model.live_memory import Chain, Graph, Leak, limit_together
from profkit.patterns import regex

Cause = Literal[
    "retained-graph", "growing-container", "forgotten-hook", "uncollected-cycle",
    "kept-traceback", "unbounded-cache", "host-growth", "pinned-growth",
]  # fmt: skip
"""Why memory grows, by the name of the rule that reports it."""

NODE_BYTES: Final = 768
"""Approximate size of a graph node. With torch 2.13 resident memory grew, after
backward, by 690 bytes a node of an attention layer, 810 of linear and 880 of convolutional ones."""
_TENSOR_BYTES: Final = 460
"""Host memory of a tensor beside its values: its Python object, its sizes, the record of its
storage. The C heap grew by 512 bytes for each tensor of 16 numbers with torch 2.13."""
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
_LAST_NAME: Final = regex(r"(?<!\w)(\w+)\W*$")


def find_leaks(ctx: Context, cause: str) -> list[tuple[Leak, ...]]:
    """Return the leaks of one cause by holder, the most bytes per step first.

    Args:
        cause: The name of the rule that reports them.
    """
    groups: dict[object, list[Leak]] = {}
    for leak in ctx.live.leaks if ctx.live is not None else ():
        if cause_of(leak) == cause:
            groups.setdefault(_holder(leak), []).append(leak)

    sorted_groups = (
        tuple(sorted(group, key=total_per_step_bytes, reverse=True)) for group in groups.values()
    )
    return sorted(sorted_groups, key=lambda group: -sum(map(total_per_step_bytes, group)))


def _holder(leak: Leak) -> object:
    """Return the key of a leak's holder; leaks without one are all different.

    The attributes of an object, such as the predictions and targets of a metric, are one holder,
    and so are all that hold the same graph: it is freed only when each of them is changed.
    """
    if leak.graph is not None and leak.graph.number:
        return leak.graph.number
    chain = main_chain(leak)
    if chain is None or chain.kind == "unknown" or not chain.name:
        return id(leak)
    return leak.kind, leak.device, _owner_name(chain), chain.scope


def _owner_name(chain: Chain) -> str:
    """Return the name of the object whose attribute grows; of anything else its own name."""
    # A module or class has attributes of any purpose, and those of a library are its own matter.
    is_attribute = chain.kind == "instance" and _ATTRIBUTE.fullmatch(chain.name) is not None
    return chain.name.rpartition(".")[0] if is_attribute and not chain.is_library else chain.name


def merge_leaks(group: tuple[Leak, ...]) -> Leak:
    """Merge the leaks of one holder, with the allocation site that grows most.

    Args:
        group: Leaks of one holder, the most bytes per step first.
    """
    largest = group[0]
    graphs = [leak.graph for leak in group if leak.graph is not None]

    return replace(
        largest,
        per_step_bytes=sum(leak.per_step_bytes for leak in group),
        bytes=sum(leak.bytes for leak in group),
        n=sum(leak.n for leak in group),
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
    if leak.kind not in {"garbage", "native"} and chain is not None and leak.limit_bytes is None:
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


def graph_bytes(graph: Graph) -> int:
    """Return the bytes that a graph saved, with an approximate size of its nodes."""
    return graph.saved_bytes + NODE_BYTES * graph.n_nodes


def saved_per_step_bytes(leak: Leak) -> int:
    """Return the bytes per step that new graph nodes save, at the average of all nodes."""
    if leak.graph is None or not leak.graph.n_nodes:
        return 0
    return round(leak.graph.saved_bytes * leak.nodes_per_step / leak.graph.n_nodes)


def node_per_step_bytes(leak: Leak) -> int:
    """Return approximate bytes per step of new graph nodes, without what they save."""
    return round(NODE_BYTES * leak.nodes_per_step)


def _tensor_objects_bytes(leak: Leak) -> int:
    """Return approximate bytes of small tensors beside their values; 0 if the values are most."""
    if leak.kind != "tensors" or leak.device != "cpu" or leak.is_enlarged:
        return 0
    n_bytes = _TENSOR_BYTES * leak.n
    return n_bytes if n_bytes > _GRAPH_SHARE * leak.bytes else 0


def _added_per_step_bytes(leak: Leak) -> int:
    """Return approximate bytes per step of nodes, and of small tensors beside their values."""
    n_steps = max(leak.last_step - leak.first_step, 1)
    return node_per_step_bytes(leak) + round(_tensor_objects_bytes(leak) / n_steps)


def total_per_step_bytes(leak: Leak) -> int:
    """Return the growth per step, with nodes, and with the objects of small tensors."""
    return leak.per_step_bytes + _added_per_step_bytes(leak)


def total_bytes(leak: Leak) -> int:
    """Return the bytes at the last sample, with the same inclusions."""
    nodes = NODE_BYTES * leak.graph.n_nodes if leak.graph else 0
    return leak.bytes + nodes + _tensor_objects_bytes(leak)


def is_estimate(leak: Leak) -> bool:
    """Return whether approximate sizes of nodes and objects make the growth an estimate."""
    return _added_per_step_bytes(leak) > _GRAPH_SHARE * total_per_step_bytes(leak)


def is_named_cache(chain: Chain) -> bool:
    """Return whether the user's name for a container says that it is a cache."""
    last = _LAST_NAME.search(chain.name)
    words = {word.lower() for word in _WORD.findall(last[1])} if last else set()
    return bool(words & _CACHE_NAMES)
