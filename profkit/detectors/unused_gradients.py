"""KER016 unused-gradients: a backward pass computes gradients that no optimizer uses.

What it finds:
    Modules that a recorded step calls and passes back through, whose parameters have gradients, of
    which no optimizer of the program has any: a teacher, a frozen backbone, a network of targets.

Why it matters:
    The backward pass takes about twice as long as the forward pass, and needs all activations of
    it. For such a module it takes this time and this memory for nothing. The cost is an upper
    bound: where a part before the module is trained, gradients have to pass through it, and only
    those of its own parameters can be left out.

How to fix it:
    Call ``requires_grad_(False)`` on the module once, after it was made. If nothing before it is
    trained, it is then part of no graph, as under ``torch.no_grad()``.

Example:
    ::

        optimizer = torch.optim.Adam(student.parameters())
        for batch in loader:
            target = teacher(batch)
            loss = distance(student(batch), target)

Use instead:
    ::

        teacher.requires_grad_(False)
        optimizer = torch.optim.Adam(student.parameters())
        for batch in loader:
            target = teacher(batch)
            loss = distance(student(batch), target)

Reads:
    What profkit recorded of the modules beside the events: their gradients, whether an optimizer
    has their parameters, and the size of the gradients in bytes. The operators of the backward
    pass, by the module of their forward operator, and their time in nanoseconds.

When to ignore this:
    The gradients are used in another way: updates are written by hand, or the gradients themselves
    are what is wanted.

Source:
    "Locally disabling gradient computation" in PyTorch's notes on autograd mechanics
    (``requires_grad``, ``no_grad``); ``torch.nn.Module.requires_grad_``.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Mask,
    Need,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    counted,
    dataclass,
    format_bytes,
    in_windows,
    known_locations,
    measure_saving,
    needs,
    reaches_share,
    time_with_share,
    torch_names,
    visible,
)

GRADIENTS: Final = Need(
    name="gradients of modules",
    reason="Which gradients an optimizer uses was not recorded.",
    remedy="Record with `profkit run` or `profkit.trace`, with stacks.",
    is_met=lambda ctx: ctx.trace.capture is not None and ctx.trace.capture.lines is not None,
    requires=(needs.OPERATORS,),
)
INFO = RuleInfo(
    id="KER016",
    name="unused-gradients",
    title="Gradients are computed that no optimizer uses",
    severity="warning",
    needs=(GRADIENTS,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When unused gradients are a finding.

    Attributes:
        min_saved_share: Minimum share of the steps that the backward pass of these modules takes.
    """

    min_saved_share: float = 0.02


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each module whose backward pass takes a share of the steps."""
    # A recording of another tool does not say what the program's optimizers have.
    capture = ctx.trace.capture
    for unused in capture.unused_gradients if capture is not None else ():
        rows = _find_backward_rows(ctx, unused.modules)
        spent = covered_by(ctx.events, rows)
        if not reaches_share(ctx, spent.total_ns, thresholds.min_saved_share):
            continue

        # A module in Python has several lines: the first is the one that takes most.
        locations = ctx.costliest_lines(rows, 1, ctx.op_self_ns[rows])
        saving = measure_saving(ctx, ProgramChange(scaled=((rows, 0.0),)), "upper-bound")
        name = visible(unused.name)
        yield saving.finding(
            INFO,
            confidence="medium",
            message=(
                f"The backward pass of `{name}`{at_first(locations)} takes "
                f"{time_with_share(ctx, spent.total_ns)}, and no optimizer uses the gradients of "
                f"its {counted(unused.n_parameters, 'parameter')} "
                f"({format_bytes(unused.bytes)})."
            ),
            fix=f"Call `{name}.requires_grad_(False)` once, before the loop.",
            locations=known_locations(*locations),
            rows=rows,
            evidence={"n_parameters": unused.n_parameters, "gradient_bytes": unused.bytes},
            spans=spent.pairs(),
        )


def _find_backward_rows(ctx: Context, modules: list[str]) -> Rows:
    """Find operators of backward passes whose forward operators ran in some modules."""
    # Modules are numbered in each recording: those of the recorded lines have the same names.
    wanted = set(modules)
    numbers = [number for number, name in enumerate(ctx.source.modules) if name in wanted]
    is_backward = (ctx.forward_ops != NO_ROW) & (ctx.events.category == Category.OP)
    is_unused = is_backward & np.isin(ctx.source.module, numbers)
    # A node and the operators in it are counted once, by the time that they cover.
    rows = np.flatnonzero(is_unused | _find_additions(ctx, np.flatnonzero(is_unused)))
    return rows[in_windows(ctx, rows)]


def _find_additions(ctx: Context, backward: Rows) -> Mask:
    """Find the operators that add what some backward operators compute to gradients.

    They have no forward operator. A node that adds has the highest sequence number, so it is
    evaluated on its thread before all others, once a node has computed what it adds.

    Args:
        backward: Rows of backward operators.

    Source:
        ``torch/csrc/autograd/functions/accumulate_grad.h``.
    """
    events, tree = ctx.events, ctx.tree
    is_node = rows_named(events, torch_names.EVALUATED_NODE, Category.OP)
    nodes = np.flatnonzero(is_node)
    nodes = nodes[np.lexsort((events.ts_ns[nodes], events.lane[nodes]))]
    computes = np.zeros(len(events), dtype=np.bool_)
    around = tree.nearest(is_node)[backward]
    computes[around[around != NO_ROW]] = True

    # The node before each one that adds, over others that add.
    adds = rows_named(events, torch_names.EVALUATED_ADDITION, Category.OP)[nodes]
    place = np.maximum.accumulate(np.where(adds, -1, np.arange(len(nodes))))
    before = nodes[place]
    follows = (place >= 0) & computes[before] & (events.lane[before] == events.lane[nodes])

    is_wanted = np.zeros(len(events), dtype=np.bool_)
    is_wanted[nodes[adds & follows]] = True
    return np.asarray((tree.nearest(is_wanted) != NO_ROW) & (events.category == Category.OP))
