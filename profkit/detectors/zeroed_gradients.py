"""MEM014 zeroed-gradients: gradients are filled with zeros instead of being set to None.

What it finds:
    ``optimizer.zero_grad(set_to_none=False)``: a fill of every gradient in every step, within the
    region that PyTorch records as ``Optimizer.zero_grad``. Before PyTorch 2.0 this was the default.

Why it matters:
    The fills take time and bandwidth for nothing: the backward pass could write the gradients
    instead of adding to zeros. And the gradients stay allocated during the whole forward pass,
    where the memory is needed for activations. The cost is what the steps take less in a replay of
    the recording without the fills and without the additions to zeros: after each ``zero_grad``, as
    many additions by autograd as it filled gradients. A fill of all gradients at once does not say
    how many they are; its cost is that of the fill alone. On a CPU the cost is an estimate: there
    the fix also changes which memory the gradients have.

How to fix it:
    Call ``optimizer.zero_grad()`` without the argument, or with ``set_to_none=True`` before
    PyTorch 2.0. Code that reads ``parameter.grad`` between steps must then expect ``None``.

Example:
    ::

        optimizer.zero_grad(set_to_none=False)
        loss_fn(model(x), y).backward()

Use instead:
    ::

        optimizer.zero_grad()
        loss_fn(model(x), y).backward()

Reads:
    Annotations and operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the kernels that
    they launched, the steps, source lines.

When to ignore this:
    The backward pass is replayed as a CUDA graph and needs gradients at fixed addresses, or a
    library keeps views of them in its own buffers.

Source:
    ``torch.optim.Optimizer.zero_grad`` in PyTorch's API reference (``set_to_none``); "Use
    parameter.grad = None instead of model.zero_grad()" in PyTorch's Performance Tuning Guide;
    ``torch/optim/optimizer.py`` (``zero_grad``).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.distinct import united
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    find_rows,
    from_torch,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_per_step,
    times_per_step,
    torch_names,
)

INFO = RuleInfo(
    id="MEM014",
    name="zeroed-gradients",
    title="Gradients filled with zeros instead of set to None",
    severity="note",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When fills of gradients are a finding.

    Attributes:
        min_time_share: Minimum share of the steps that a fix saves. For a network of a few small
            tensors the fills cost nothing.
        warning_share: Share from which it is a warning.
    """

    min_time_share: float = 0.001
    warning_share: float = 0.02


# Optimizers fill all gradients of one device and type by a single `_foreach_zero_`.
_FILL: Final = regex(r"^aten::(zero_|_foreach_zero_)$")
_FILL_OF_TENSOR: Final = regex(r"^aten::zero_$")
_ADD: Final = regex(r"^aten::add_$")


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if optimizers fill gradients with zeros."""
    fills = _find_fills(ctx)
    if not len(fills):
        return

    # Without zeros, autograd takes the new gradient as it is instead of adding it.
    adds = _find_adds(ctx, fills)
    ops = np.concatenate((fills, adds))
    work, _ = ctx.launched_by(ops)
    change = ProgramChange(scaled=((united(ops, work), 0.0),))
    # On a CPU new gradients may have page faults, which filled ones have not, or spare the cache.
    saving = measure_saving(ctx, change, "replay" if len(work) else "estimate")
    if not saving.reaches(thresholds.min_time_share):
        return

    locations = find_costliest_lines(ctx, fills)
    times = [f"{time_per_step(ctx, covered_by(ctx.events, ops).total_ns)} on the host"]
    if len(work):
        on_device_ns = covered_by(ctx.events, work).total_ns
        times.append(f"{time_per_step(ctx, on_device_ns)} on the GPU")
    added = "; the backward pass adds to the zeros. Both take" if len(adds) else ", which takes"

    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high",
        message=(
            f"Gradients are filled with zeros{at_first(locations)}, "
            f"{times_per_step(ctx, len(fills))}{added} {' and '.join(times)}."
        ),
        fix=_suggest_fix(ctx),
        locations=locations,
        rows=fills,
        evidence={"n_fills": len(fills), "n_adds": len(adds)},
        spans=covered_by(ctx.events, work if len(work) else ops).pairs(),
    )


def _suggest_fix(ctx: Context) -> str:
    if not from_torch(ctx, "2.0"):
        return "Leave out `set_to_none=False` where `zero_grad()` is called."
    return (
        "Call `zero_grad()` without `set_to_none=False`; before PyTorch 2.0 pass "
        "`set_to_none=True`."
    )


def _find_fills(ctx: Context) -> Rows:
    """Find the operators that fill with zeros within an optimizer's ``zero_grad``."""
    events = ctx.events
    is_zero_grad = rows_named(
        events, torch_names.OPTIMIZER_ZERO_GRAD, Category.ANNOTATION, Category.OP
    )
    is_fill = rows_named(events, _FILL, Category.OP)
    is_inside = ctx.tree.nearest(is_zero_grad) != NO_ROW

    # A fill of several tensors may consist of fills of one, and counts once.
    rows = np.flatnonzero(is_fill & is_inside & (ctx.tree.enclosing(is_fill) == NO_ROW))
    return np.asarray(rows[in_windows(ctx, rows)])


def _find_adds(ctx: Context, fills: Rows) -> Rows:
    """Find the additions of a gradient to one that was filled with zeros."""
    events = ctx.events
    fills = fills[rows_named(events, _FILL_OF_TENSOR, Category.OP)[fills]]
    nodes = rows_named(events, torch_names.ACCUMULATE_GRAD, Category.OP)
    adds = find_rows(ctx, _ADD, Category.OP)
    adds = adds[ctx.tree.nearest(nodes)[adds] != NO_ROW]

    rows = np.concatenate((fills, adds))
    is_add = np.repeat((False, True), (len(fills), len(adds)))
    order = np.argsort(events.ts_ns[rows], kind="stable")

    # Autograd adds to each gradient once per backward pass, so each fill has one addition. Later
    # passes before the next fills add to gradients that are no longer zero.
    n_zeros, has_added, adds_to_zeros = 0, False, []
    for row, is_addition in zip(rows[order].tolist(), is_add[order].tolist(), strict=True):
        if not is_addition:
            n_zeros, has_added = (0 if has_added else n_zeros) + 1, False
        elif n_zeros:
            adds_to_zeros.append(row)
            n_zeros, has_added = n_zeros - 1, True
    return np.asarray(adds_to_zeros, dtype=fills.dtype)
