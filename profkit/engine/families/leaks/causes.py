"""Which rule tells of what grows, so that each growth is told once and none is lost."""

import re
from dataclasses import replace
from typing import Final, Literal

from profkit.engine.context import Context
from profkit.model.live_memory import Chain, Graph, Leak

Cause = Literal[
    "retained-graph", "growing-container", "forgotten-hook", "uncollected-cycle",
    "kept-traceback", "unbounded-cache", "host-growth", "pinned-growth",
]  # fmt: skip
"""Why memory grows, by the name of the rule that tells of it."""

NODE_BYTES: Final = 768
"""What a node of a graph takes by itself, about. With torch 2.13 resident memory grew, after
backward, by 690 bytes a node of an attention layer, 810 of linear and 880 of convolutional ones."""
_GRAPH_SHARE: Final = 0.1
"""A graph that keeps less of a growth than this is not why it grows."""
_MOSTLY_GRAPH_SHARE: Final = 0.5
"""Of a cache that keeps more graph than this, the graph is what to let go first."""
_BY_HOLDER: Final[dict[str, Cause]] = {
    "traceback": "kept-traceback",
    "hook": "forgotten-hook",
    "cache": "unbounded-cache",
}
_CACHE_WORDS: Final = frozenset({"cache", "caches", "cached", "memo", "memos", "memoized"})
_STRETCH: Final = " → "
"""What a part of a chain begins with that is reached through what stands before it."""
_ENTRIES: Final = frozenset({" → a member", " → an item", " → one of its keys"})
"""Parts that are entries of a container as ``[17]`` is."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LAST_NAME: Final = re.compile(r"(\w+)\W*$")


def leaks_of_cause(ctx: Context, cause: str) -> list[tuple[Leak, ...]]:
    """What grows for a reason, the most bytes a step first; what one holder keeps, together.

    Args:
        ctx: What was recorded; with watched memory.
        cause: The name of the rule that asks.
    """
    groups: dict[object, list[Leak]] = {}
    for growth in ctx.live.leaks if ctx.live is not None else ():
        if cause_of(growth) == cause:
            groups.setdefault(_holder(growth), []).append(growth)
    found = (
        tuple(sorted(group, key=total_per_step_bytes, reverse=True)) for group in groups.values()
    )
    return sorted(found, key=lambda group: -sum(map(total_per_step_bytes, group)))


def _holder(growth: Leak) -> object:
    """What tells growths of one holder from those of another; those of none are all apart."""
    chain = main_chain(growth)
    if chain is None or not container_name(chain):
        return id(growth)
    return growth.kind, growth.device, container_name(chain), container_place(chain)


def merged(group: tuple[Leak, ...]) -> Leak:
    """What one holder keeps as one growth: by the line that makes most of it.

    Args:
        group: Growths of one holder, the most bytes a step first.
    """
    most = group[0]
    graphs = [each.graph for each in group if each.graph is not None]
    return replace(
        most,
        per_step_bytes=sum(each.per_step_bytes for each in group),
        bytes=sum(each.bytes for each in group),
        n=sum(each.n for each in group),
        first_step=min(each.first_step for each in group),
        last_step=max(each.last_step for each in group),
        graph=max(graphs, key=graph_bytes, default=None),
        nodes_per_step=sum(each.nodes_per_step for each in group),
        shape=most.shape if len({each.shape for each in group}) == 1 else "",
    )


def cause_of(growth: Leak) -> Cause:
    """Why something grows: the one thing that most likely has to change.

    What holds an object counts before what hangs behind it: a tensor in the frame of a kept
    exception has a graph more often than not, and goes when the exception goes.

    Args:
        growth: What grows.
    """
    chain = main_chain(growth)
    if growth.kind != "garbage" and chain is not None:
        if chain.kind in _BY_HOLDER:
            return _BY_HOLDER[chain.kind]
        if is_named_cache(chain) and graph_share(growth) < _MOSTLY_GRAPH_SHARE:
            return "unbounded-cache"
    return _by_itself(growth)


def _by_itself(growth: Leak) -> Cause:
    """Why something grows whose holder says nothing."""
    if growth.kind == "garbage":
        return "uncollected-cycle"
    if growth.kind in {"host", "workers"}:
        return "host-growth"
    if growth.device == "pinned":
        return "pinned-growth"
    return "retained-graph" if graph_share(growth) >= _GRAPH_SHARE else "growing-container"


def main_chain(growth: Leak) -> Chain | None:
    """The chain to tell of: the shortest whose root is known, else the shortest; None if none."""
    known = (chain for chain in growth.chains if chain.kind != "unknown")
    return next(known, growth.chains[0] if growth.chains else None)


def graph_share(growth: Leak) -> float:
    """How much of a growth is the autograd graph behind it, its nodes counted too; 0 to 1."""
    if growth.kind == "graph":
        return 1.0
    if growth.graph is None:
        return 0.0
    if growth.nodes_per_step and growth.graph.n_nodes:
        kept = saved_per_step_bytes(growth) + node_per_step_bytes(growth)
        return min(kept / max(total_per_step_bytes(growth), 1), 1.0)
    kept = graph_bytes(growth.graph)
    own = max(growth.bytes - growth.graph.saved_bytes, 0)
    return kept / (kept + own) if kept else 0.0


def graph_bytes(graph: Graph) -> int:
    """What a graph takes: what it saved, and about what its nodes take themselves."""
    return graph.saved_bytes + NODE_BYTES * graph.n_nodes


def saved_per_step_bytes(growth: Leak) -> int:
    """What the nodes that the graph behind gains in a step have saved, as all of them have."""
    if growth.graph is None or not growth.graph.n_nodes:
        return 0
    return round(growth.graph.saved_bytes * growth.nodes_per_step / growth.graph.n_nodes)


def node_per_step_bytes(growth: Leak) -> int:
    """About what the nodes alone of the graph behind take a step."""
    return round(NODE_BYTES * growth.nodes_per_step)


def total_per_step_bytes(growth: Leak) -> int:
    """By how much it grows a step, nodes included."""
    return growth.per_step_bytes + node_per_step_bytes(growth)


def total_bytes(growth: Leak) -> int:
    """How much of it there was at the last look, nodes included."""
    return growth.bytes + (NODE_BYTES * growth.graph.n_nodes if growth.graph else 0)


def is_estimate(growth: Leak) -> bool:
    """Whether what is known of its nodes' size alone makes its size an estimate."""
    return node_per_step_bytes(growth) > _GRAPH_SHARE * total_per_step_bytes(growth)


def container_name(chain: Chain) -> str:
    """What grows, as the user calls it: ``history`` of ``__main__.history[17]``.

    Args:
        chain: Who holds an entry of it.
    """
    start, end = _name_of(chain)
    name = "".join(chain.parts[start:end]).removeprefix(_STRETCH)
    return name.removeprefix("__main__.").lstrip(".")


def is_container_entry(chain: Chain) -> bool:
    """Whether what is held is an entry of a container, and not what a name stands for itself.

    Args:
        chain: Who holds it.
    """
    return any(_is_entry(part) for part in chain.parts[1:])


def container_place(chain: Chain) -> str:
    """Where its name is known, such as `` in main at train.py:3``; empty for one that is global.

    Args:
        chain: Who holds an entry of it.
    """
    _, end = _name_of(chain)
    for part in chain.parts[end:]:
        if part.startswith(_STRETCH) and not _is_entry(part):
            break
        if part.startswith(" ") and not _is_entry(part):
            return part
    return ""


def _name_of(chain: Chain) -> tuple[int, int]:
    """The parts that name what grows: those before the last entry, in its stretch."""
    parts = chain.parts
    entries = [n for n, part in enumerate(parts) if n and _is_entry(part)]
    end = entries[-1] if entries else _end_of_stretch(parts)
    while end > 1 and _is_entry(parts[end - 1]):
        end -= 1
    begins = [n for n in range(1, end) if parts[n].startswith(_STRETCH)]
    return (begins[-1] if begins else 0), end


def _end_of_stretch(parts: tuple[str, ...]) -> int:
    """Where the last name of a chain ends that has no entry on it."""
    closed = bool(parts) and len(parts) > 1 and parts[-1].startswith(" ")
    return len(parts) - 1 if closed and not parts[-1].startswith(_STRETCH) else len(parts)


def _is_entry(part: str) -> bool:
    return part.startswith("[") or part in _ENTRIES


def is_named_cache(chain: Chain) -> bool:
    """Whether the user's own name for a container says that it is a cache.

    Args:
        chain: Who holds an entry of it.
    """
    last = _LAST_NAME.search(container_name(chain))
    words = {word.lower() for word in _WORD.findall(last[1])} if last else set()
    return bool(words & _CACHE_WORDS)
