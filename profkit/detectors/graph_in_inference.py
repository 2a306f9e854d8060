"""MEM013 graph-in-inference: an autograd graph is built that no backward pass uses.

What it finds:
    Forward passes with gradients enabled whose graph is freed unused: no backward pass runs through
    it, and the tensors that it saved are freed within the recording. Validation and inference
    without ``torch.no_grad()`` look like this. ``model.eval()`` does not disable gradients. In a
    recording without any backward pass, and without steps or with calls of a module as steps, also
    a graph that is alive at the end.

Why it matters:
    Each operator saves the tensors that its backward needs, so all activations of a forward pass
    are in memory at once instead of a few at a time. That is often most of a step's memory, and it
    limits the batch size. Creating the nodes costs the host one or two microseconds per operator.
    The cost is the peak of saved memory, or what is saved at the end; some of it may be needed in
    any case.

How to fix it:
    Evaluate under ``torch.inference_mode()``, or ``torch.no_grad()`` where a result becomes part of
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
    Operators and their sequence numbers (``ts_ns`` in nanoseconds), whether dropout and batch
    normalization train, ``[memory]`` events (``n_bytes`` in bytes, ``address``), source lines.

When to ignore this:
    A branch of a training step whose result is not part of the loss is found too: it needs no
    graph either. In a recording with steps a graph that is alive at the end is not reported: its
    backward pass may come later, or it is a leak. In one without, the confidence is low unless
    dropout or batch normalization ran in evaluation mode, which only a recording with shapes
    shows. The last node of each graph is not counted.

Source:
    "Locally disabling gradient computation" in PyTorch's autograd mechanics (no-grad and inference
    mode, and evaluation mode, which is independent of them); ``torch.inference_mode`` in the API
    reference.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.compute.inputs import parse_inputs
from profkit.index.distinct import distinct
from profkit.index.host.source import NO_FRAME
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.index.sums import sum_by_key
from profkit.index.trace_memory.graph_nodes import (
    GraphNodes,
    RetainedBytes,
    find_graph_nodes,
    find_retained_bytes,
    peak_live_bytes,
)
from profkit.rule import (
    MAX_LINES,
    MISSING,
    Category,
    Context,
    Cost,
    Finding,
    Location,
    Mask,
    Rows,
    RuleInfo,
    at,
    counted,
    dataclass,
    event_ids,
    format_bytes,
    in_windows,
    known_locations,
    needs,
    regex,
    times_per_step,
    torch_names,
)

INFO = RuleInfo(
    id="MEM013",
    name="graph-in-inference",
    title="Autograd graph built without a backward pass",
    severity="warning",
    needs=(needs.OPERATORS, needs.ALLOCATION_ADDRESSES),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When an unused graph is a finding.

    Attributes:
        min_nodes_count: Minimum nodes in a row that no backward pass used: a layer and its loss
            make three, a metric fewer.
        min_freed_share: Minimum share of the saved memory that is freed within the recording. A
            training step that the recording cuts off frees almost nothing.
        min_kept_bytes: Minimum peak of the saved memory.
        warning_kept_bytes: Peak from which it is a warning.
    """

    min_nodes_count: int = 3
    min_freed_share: float = 0.5
    min_kept_bytes: int = 262144
    warning_kept_bytes: int = 1048576


_TRAINING_FLAGS: Final = {
    regex(r"^aten::(feature_|alpha_|feature_alpha_)?dropout_?$"): 2,
    regex(r"^aten::batch_norm$"): 5,
}
"""Operators with an argument for training, and the argument's index."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each network whose graphs are freed unused."""
    nodes = find_graph_nodes(ctx.events, ctx.tree)
    trains = names_matching(ctx.events, torch_names.TRAINING)[ctx.events.name].any()
    if not len(nodes) or (trains and not nodes.is_used.any()):
        return  # a backward pass that does not record its nodes may have used them all

    saved = find_retained_bytes(ctx.events, ctx.tree, nodes, ctx.allocations)
    freed, alive = _find_unused_runs(ctx, nodes, saved, thresholds)

    # Where a program trains, a backward pass after the recording may use a live graph. Steps that
    # are calls of a module have neither an optimizer nor, in the recording, a backward pass.
    capture = ctx.trace.capture
    is_of_modules = capture is not None and capture.steps == "module"
    # Graphs that become more with every step are a leak, which is a finding of its own.
    is_leak = ctx.live is not None and any(leak.nodes_per_step for leak in ctx.live.leaks)
    has_end = trains or is_leak or (len(ctx.steps) and not is_of_modules)
    for runs, is_alive in ((freed, False), *([] if has_end else [(alive, True)])):
        for same_line in _group_by_first_line(ctx, nodes, runs):
            is_node = np.isin(nodes.run, same_line)
            is_saved = is_node[saved.node] & ~(is_alive & saved.is_freed)
            peak = peak_live_bytes(ctx.allocations, saved.alloc[is_saved])
            if peak >= thresholds.min_kept_bytes:
                yield _build_finding(ctx, thresholds, nodes, is_node, peak, is_alive=is_alive)


def _find_unused_runs(
    ctx: Context, nodes: GraphNodes, saved: RetainedBytes, thresholds: Thresholds
) -> tuple[Rows, Rows]:
    """Find the runs of nodes in the windows that no backward pass used: freed, and alive ones."""
    n_runs = int(nodes.run.max()) + 1
    n_bytes = ctx.allocations.n_bytes[saved.alloc]
    run = nodes.run[saved.node]
    total_bytes = sum_by_key(n_runs, run, n_bytes)
    freed_bytes = sum_by_key(n_runs, run[saved.is_freed], n_bytes[saved.is_freed])
    is_counted = (nodes.run >= 0) & in_windows(ctx, nodes.row)
    n_nodes = sum_by_key(n_runs, nodes.run[is_counted], nodes.n[is_counted])

    is_unused = (n_nodes >= thresholds.min_nodes_count) & (total_bytes > 0)
    is_freed = freed_bytes >= thresholds.min_freed_share * total_bytes
    return np.flatnonzero(is_unused & is_freed), np.flatnonzero(is_unused & ~is_freed)


def _group_by_first_line(ctx: Context, nodes: GraphNodes, runs: Rows) -> list[Rows]:
    """Group runs by the line on which they begin, or by the operator without source lines."""
    # Used nodes are in no run, and their number comes first: runs are counted from the end. Names
    # get negative numbers that no frame has.
    _, first = np.unique(nodes.run, return_index=True)
    begin = nodes.row[first[-1 - int(nodes.run.max()) :][runs]]
    frame = ctx.source.frame[begin].astype(np.int64)
    line = np.where(frame != NO_FRAME, frame, -2 - ctx.events.name[begin].astype(np.int64))
    return [runs[line == number] for number in distinct(line)]


def _find_locations(ctx: Context, nodes: GraphNodes, is_node: Mask) -> tuple[Location, ...]:
    """Find the lines that build no used graph, the one with the most nodes first.

    The network's own lines also run in training; without other lines, the last one is returned.
    """
    rows = nodes.row[is_node]
    frame = ctx.source.frame[rows]
    trained = distinct(ctx.source.frame[nodes.row[nodes.is_used]])
    untrained = rows[(frame != NO_FRAME) & ~np.isin(frame, trained)]
    if not len(untrained):
        return known_locations(ctx.location(int(rows[-1])))
    return known_locations(*ctx.costliest_lines(untrained, MAX_LINES))


def _is_training(ctx: Context) -> bool | None:
    """Tell whether dropout and batch normalization run as in training; None if unknown."""
    events = ctx.events
    flags = set()
    for pattern, place in _TRAINING_FLAGS.items():
        texts = events.concrete_inputs.at(np.flatnonzero(rows_named(events, pattern, Category.OP)))
        for number in distinct(texts[texts != MISSING]).tolist():
            inputs = parse_inputs("[]", "", events.names[number])
            flags.add(inputs.value(place) if inputs is not None else None)
    return None if not flags & {True, False} else True in flags


def _build_finding(
    ctx: Context,
    thresholds: Thresholds,
    nodes: GraphNodes,
    is_node: Mask,
    peak: int,
    *,
    is_alive: bool,
) -> Finding:
    n_nodes = int(nodes.n[is_node].sum())
    locations = _find_locations(ctx, nodes, is_node)
    place = locations[0] if locations else Location()
    # The backward pass of a live graph may follow the recording, unless layers are in evaluation
    # mode.
    is_sure = not is_alive or _is_training(ctx) is False
    is_large = peak >= thresholds.warning_kept_bytes

    size, nodes_text = format_bytes(peak), counted(n_nodes, "node")
    if is_alive:
        memory = f" in this recording. Its {nodes_text} hold {size} when it ends."
    else:
        often = times_per_step(ctx, n_nodes)
        memory = f". Its {nodes_text} ({often}) saved up to {size} at one time."
    return INFO.finding(
        severity="warning" if is_large and is_sure else "note",
        confidence="low" if not is_sure else "high" if place.file and not is_alive else "medium",
        message=f"An autograd graph is built{at(place)} that no backward pass uses{memory}",
        fix=(
            "Evaluate under `torch.inference_mode()`, or `torch.no_grad()` where the result "
            "becomes part of a graph later; `model.eval()` does not disable gradients."
        ),
        locations=locations,
        n=n_nodes,
        cost=Cost(bytes=peak, basis="upper-bound"),
        evidence={"saved_bytes": peak, "events": event_ids(ctx, nodes.row[is_node])},
    )
