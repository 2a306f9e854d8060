"""MEM013 graph-in-inference: an autograd graph is built that no backward pass uses.

What it finds:
    Forward passes with gradients on whose graph is dropped again: no backward pass runs through
    it, and what it kept is freed while the recording still runs. Validation and inference without
    ``torch.no_grad()`` look like this. ``model.eval()`` does not turn gradients off.

Why it matters:
    Each operator keeps for its backward what it needs there, so all activations of a forward pass
    stand at once instead of a few at a time: that is often most of the memory of a step, and it
    sets the largest batch. Making the nodes costs the host a microsecond or two an operator. The
    cost is the most that was kept at one time; some of it may have to stand anyway.

How to fix it:
    Evaluate under ``torch.inference_mode()``, or ``torch.no_grad()`` where a result takes part in
    a graph later: as a ``with`` block, or as a decorator of the function that evaluates.

Example:
    ::

        model.eval()
        for x, y in validation:
            total += loss_fn(model(x), y).item()

Use instead:
    ::

        model.eval()
        with torch.inference_mode():
            for x, y in validation:
                total += loss_fn(model(x), y).item()

Reads:
    Operators and their sequence numbers (``ts_ns`` in nanoseconds), ``[memory]`` events
    (``n_bytes`` in bytes, ``address``), the user's lines.

When to ignore this:
    A branch of a training step whose result takes no part in the loss is found too: it needs no
    graph either. A graph that something still holds when the recording ends is none of this
    rule's: its backward may come later, or it is a leak. Of each run of nodes the last one goes
    unseen.

Source:
    "Locally disabling gradient computation" in PyTorch's autograd mechanics (no-grad and inference
    mode, and evaluation mode, which is apart from them); ``torch.inference_mode`` in the API
    reference.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import event_ids, in_windows
from profkit.engine.wording import at, known_locations, times_per_step
from profkit.index.host.source import NO_FRAME
from profkit.index.runtime_calls import names_matching
from profkit.index.trace_memory.graph_nodes import (
    GraphNodes,
    RetainedBytes,
    graph_nodes,
    peak_live_bytes,
    retained_bytes,
)
from profkit.model.events import Int64s, Mask, Rows
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.torch_names import BACKWARD, COMPILED_AUTOGRAD, OPTIMIZER_STEP
from profkit.units import format_bytes, format_count

INFO = RuleInfo(
    id="MEM013",
    name="graph-in-inference",
    title="A graph is built that no backward pass uses",
    severity="warning",
    needs=(needs.OPERATORS, needs.ALLOCATION_ADDRESSES),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a graph that is dropped is a finding.

    Attributes:
        min_nodes_count: Nodes in a row that no backward pass used: a layer and its loss make three,
            a figure worked out beside the loss fewer.
        min_freed_share: Share of what the graph kept that must be freed within the recording. Of a
            training step that the recording cuts off, nearly nothing is.
        min_kept_bytes: What the graph must have kept at one time; less is no news.
        warning_kept_bytes: From here on it is a warning.
    """

    min_nodes_count: int = 3
    min_freed_share: float = 0.5
    min_kept_bytes: int = 262144
    warning_kept_bytes: int = 1048576


_TRAINS: Final = re.compile(rf"{OPTIMIZER_STEP.pattern}|{BACKWARD.pattern}|{COMPILED_AUTOGRAD}")
"""Signs of a backward pass, whether or not it says which nodes it ran."""
MAX_LINES: Final = 3


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each network whose graphs are built and dropped."""
    nodes = graph_nodes(ctx.events, ctx.tree)
    trains = names_matching(ctx.events.names, _TRAINS)[ctx.events.name].any()
    if not len(nodes) or (trains and not nodes.is_used.any()):
        return  # a backward pass that does not tell its nodes may have used them all
    kept = retained_bytes(ctx.events, ctx.tree, nodes, ctx.allocations)
    dropped = _dropped(ctx, nodes, kept, thresholds)
    for stretches in _by_first_line(ctx, nodes, dropped):
        here = np.isin(nodes.run, stretches)
        most = peak_live_bytes(ctx.allocations, kept.alloc[here[kept.node]])
        if most >= thresholds.min_kept_bytes:
            yield _finding(ctx, thresholds, nodes, here, most)


def _dropped(ctx: Context, nodes: GraphNodes, kept: RetainedBytes, thresholds: Thresholds) -> Rows:
    """Runs of unused nodes whose graph was let go of, in the windows that are judged."""
    n_stretches = int(nodes.run.max()) + 1
    n_bytes = ctx.allocations.n_bytes[kept.alloc]
    stretch = nodes.run[kept.node]
    total = _sums(stretch, n_bytes, n_stretches)
    freed = _sums(stretch[kept.is_freed], n_bytes[kept.is_freed], n_stretches)
    unused = nodes.run >= 0
    judged = unused & in_windows(ctx, nodes.row)
    n_nodes = _sums(nodes.run[judged], nodes.n[judged], n_stretches)
    return np.flatnonzero(
        (n_nodes >= thresholds.min_nodes_count)
        & (total > 0)
        & (freed >= thresholds.min_freed_share * total)
    )


def _sums(group: Int64s, values: Int64s, n: int) -> Int64s:
    found = np.zeros(n, dtype=np.int64)
    np.add.at(found, group, values)
    return found


def _by_first_line(ctx: Context, nodes: GraphNodes, stretches: Rows) -> list[Rows]:
    """Runs that begin on one line, or with one operator where no lines are known."""
    _, first = np.unique(nodes.run, return_index=True)
    begin = nodes.row[first[-1 - int(nodes.run.max()) :][stretches]]
    frame = ctx.source.frame[begin].astype(np.int64)
    key = np.where(frame != NO_FRAME, frame, -2 - ctx.events.name[begin].astype(np.int64))
    return [stretches[key == each] for each in np.unique(key)]


def _locations(ctx: Context, nodes: GraphNodes, here: Mask) -> tuple[Location, ...]:
    """The lines that no used graph comes from, the one with the most nodes first.

    The lines of the network itself are those of training too; where there is no other, it is the
    last one.
    """
    rows = nodes.row[here]
    frame = ctx.source.frame[rows]
    trained = np.unique(ctx.source.frame[nodes.row[nodes.is_used]])
    own = rows[(frame != NO_FRAME) & ~np.isin(frame, trained)]
    if not len(own):
        return known_locations(ctx.location(int(rows[-1])))
    lines = sorted(ctx.by_line(own), key=lambda each: -len(each[1]))
    return known_locations(*(location for location, _ in lines[:MAX_LINES]))


def _finding(
    ctx: Context, thresholds: Thresholds, nodes: GraphNodes, here: Mask, most: int
) -> Finding:
    n_nodes = int(nodes.n[here].sum())
    locations = _locations(ctx, nodes, here)
    place = locations[0] if locations else Location()
    return INFO.finding(
        severity="warning" if most >= thresholds.warning_kept_bytes else "note",
        confidence="high" if place.file else "medium",
        message=(
            f"A graph is built{at(place)} that no backward pass uses: {format_count(n_nodes)} "
            f"nodes, {times_per_step(ctx, n_nodes)}, which kept up to {format_bytes(most)} at one time "
            f"until they were dropped."
        ),
        fix=(
            "Evaluate under `torch.inference_mode()`, or `torch.no_grad()` where the result takes "
            "part in a graph later; `model.eval()` alone does not turn gradients off."
        ),
        locations=locations,
        n=n_nodes,
        cost=Cost(bytes=most, basis="upper-bound"),
        evidence={"kept_bytes": most, "events": event_ids(ctx, nodes.row[here])},
    )
