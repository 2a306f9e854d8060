"""KER004 unfused-optimizer: the optimizer updates one parameter after the other.

What it finds:
    Steps of an optimizer that run elementwise operators for each parameter (the "for-loop"
    implementation) instead of a few operators for all parameters. On a GPU the operators count
    that launch kernels; on a CPU those of optimizers that have a fused implementation there.
    Operators of a closure, which runs within the optimizer's step, do not count.

Why it matters:
    Each operator costs the host some microseconds whatever its size, and on a GPU each launches a
    kernel that is often shorter than its launch. The cost is what the steps take less in a replay
    of the recording without the Python between these operators, and in which they take a smaller
    share of their time on the host: on a GPU a tenth, with all kernels kept; on a CPU what a fused
    step took in measurements of the time that grows with the tensors. Fused kernels take less time
    on a GPU, too; that is not in the figure.

How to fix it:
    On a GPU pass ``fused=True`` (``Adam``, ``AdamW``, ``SGD``) or ``foreach=True``, which is the
    default of PyTorch's optimizers on GPUs since torch 2.0. On a CPU pass ``fused=True``
    (``Adam``, ``AdamW``, ``SGD``, ``Adagrad``, from torch 2.4 on); ``foreach=True`` is a loop
    there, too. The ``Trainer`` of Transformers takes ``optim="adamw_torch_fused"`` in its
    ``TrainingArguments``. Write an optimizer of your own with ``torch._foreach_*``, or call its
    ``step()`` in a function compiled by ``torch.compile``.

Example:
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

Use instead:
    ::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

Reads:
    The annotations of optimizers (``name``), operators within them (``name``, ``ts_ns`` and
    ``dur_ns`` in nanoseconds), the kernels that they launched, source lines.

When to ignore this:
    The step is differentiated (``differentiable=True``) or the gradients are sparse: neither works
    fused. ``foreach=True`` needs memory for as much as all parameters; ``fused=True`` does not.

Source:
    ``torch.optim`` in PyTorch's documentation ("foreach", "fused"); ``torch/optim/optimizer.py``
    (``_default_to_fused_or_foreach``); the pull requests 123074, 123629 and 124905 of
    pytorch/pytorch (fused Adam, SGD and Adagrad on a CPU); "Compiling the optimizer with
    torch.compile" among PyTorch's tutorials.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.embedding_tables import MAX_READ_SHARE, find_updated_tables
from profkit.engine.families.frameworks import Trainer, find_trainer
from profkit.engine.families.tensor_loops import (
    KEPT_ON_GPU,
    find_python_between,
    kept_on_cpu,
    optimizer_of,
    select_called,
)
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import are_optimizer_steps, rows_named, updates_begin_ns
from profkit.rule import (
    Category,
    Context,
    Finding,
    Need,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    format_count,
    from_torch,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_per_step,
    time_with_share,
    uses_device,
)

OPTIMIZER_STEPS: Final = Need(
    name="optimizer steps",
    reason="No step of an optimizer was recorded.",
    remedy="Record training steps that call `optimizer.step()`, with `ProfilerActivity.CPU`.",
    is_met=lambda ctx: bool(are_optimizer_steps(ctx.events).any()),
    requires=(needs.OPERATORS,),
)

INFO = RuleInfo(
    id="KER004",
    name="unfused-optimizer",
    title="Optimizer updates parameters one by one",
    severity="warning",
    needs=(OPTIMIZER_STEPS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When an optimizer's loop is a finding.

    Attributes:
        min_operators_count: Minimum operators of the loop per call of ``step()``. A foreach step
            has about ten operators of its own.
        min_saved_share: Minimum share of the steps that the fix saves, for an argument to change.
        warning_share: Share from which it is a warning.
    """

    min_operators_count: int = 20
    min_saved_share: float = 0.01
    warning_share: float = 0.03


_ELEMENTWISE: Final = regex(
    r"^aten::(abs|add|addcdiv|addcmul|bitwise_\w+|clamp\w*|clone|copy|div|eq|exp|fmax|ge|gt|le|lerp"
    r"|lt|maximum|max|minimum|mul|ne|neg|pow|reciprocal|rsqrt|rsub|sgn|sign|sqrt|square|sub|where"
    r"|zero|zeros_like)_?$"
)
"""Operators that optimizers run for each parameter; not ``_foreach_`` and ``_fused_`` ones."""
_KEPT_ON_CPU: Final = {"Adam": 0.33, "AdamW": 0.33, "Adagrad": 0.45, "SGD": 0.7}
"""Share that remains on a CPU of the time that grows with the tensors. A fused step reads and
writes each tensor once: Adam passes over memory 7 times instead of some 21, Adagrad 5 instead of
11, SGD with momentum 5 instead of 8. Steps of 6 to 40 tensors with 4 thousand to a million elements
each took 0.15 to 0.44, 0.28 to 0.45 and 0.25 to 0.80 of the loop's time with torch 2.13."""
_MOMENTUM: Final = regex(r"^aten::mul_$")
_READS: Final = regex(r"^aten::item$")
# The versions of torch that brought `fused=True` for CUDA.
_FUSED_ON_GPU: Final = {"Adam": "1.13", "AdamW": "2.0", "SGD": "2.3"}
# Optimizers that have a foreach implementation and, on GPUs, no fused one.
_FOREACH: Final = frozenset(
    {"ASGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"}
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each class of optimizers whose step is a loop over parameters."""
    calls = np.flatnonzero(are_optimizer_steps(ctx.events))
    calls = calls[in_windows(ctx, calls)]
    call_of_op, ops = _find_loops(ctx, calls)
    names = np.array([ctx.events.name_of(row) for row in call_of_op.tolist()], dtype=object)

    for name in sorted(set(names.tolist())):
        is_class = names == name
        class_calls, class_ops = distinct(call_of_op[is_class]), ops[is_class]
        if len(class_ops) >= thresholds.min_operators_count * len(class_calls):
            yield from _build_findings(ctx, thresholds, name, class_calls, class_ops)


def _build_findings(
    ctx: Context, thresholds: Thresholds, name: str, calls: Rows, ops: Rows
) -> Iterator[Finding]:
    """Yield the finding on the steps of one class, if a fix saves enough.

    Args:
        name: The annotation's name, as in ``Optimizer.step#SGD.step``.
    """
    optimizer = optimizer_of(name)
    work, _ = ctx.launched_by(ops)
    change = _build_change(ctx, ops) if len(work) else _build_cpu_change(ctx, optimizer, calls, ops)
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    locations = find_costliest_lines(ctx, calls)
    # The model's time in a closure, as Lightning passes one, is no update.
    step_ns = int((ctx.events.end_ns[calls] - updates_begin_ns(ctx.events, calls)).sum())
    device_ns = covered_by(ctx.events, work).total_ns
    n_ops_per_call = round(len(ops) / len(calls))
    for_kernels = f" on the host for {time_per_step(ctx, device_ns)} of kernels"
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high" if len(work) else "medium",
        message=(
            f"`{optimizer}.step()`{at_first(locations)} updates one parameter "
            f"after the other with {format_count(n_ops_per_call)} operators in all. It takes "
            f"{time_with_share(ctx, step_ns)}{for_kernels if len(work) else ''}."
        ),
        fix=_suggest_fix(ctx, optimizer, on_gpu=bool(len(work))),
        locations=locations,
        rows=ops,
        n=len(calls),
        evidence={
            "n_operators_per_step": n_ops_per_call,
            "host_ns": step_ns,
            "operators_ns": covered_by(ctx.events, ops).total_ns,
            "device_ns": device_ns,
        },
        spans=covered_by(ctx.events, ops).pairs(),
    )


def _build_change(ctx: Context, ops: Rows) -> ProgramChange:
    """Build the change to one operator for all parameters on a GPU."""
    return ProgramChange(
        scaled=((ops, KEPT_ON_GPU),), host_time=find_python_between(ctx, ops).pairs()
    )


def _build_cpu_change(ctx: Context, optimizer: str, calls: Rows, ops: Rows) -> ProgramChange:
    """Build the change to a fused step on a CPU; an empty one if the class has none there."""
    kept = _KEPT_ON_CPU.get(optimizer)
    if kept is None:
        return ProgramChange()
    # Without momentum, SGD passes over its tensors once already.
    has_momentum = rows_named(ctx.events, _MOMENTUM, Category.OP)[ops].any()
    if optimizer == "SGD" and not has_momentum:
        kept = 1.0

    # Adam reads its count of steps for each parameter, which its fused step does not.
    reads = np.flatnonzero(rows_named(ctx.events, _READS, Category.OP))
    _, reads = select_called(ctx, calls, reads)
    between = find_python_between(ctx, np.union1d(ops, reads))
    return ProgramChange(
        scaled=((ops, kept_on_cpu(ctx, ops, kept)), (reads, 0.0)), host_time=between.pairs()
    )


def _find_loops(ctx: Context, calls: Rows) -> tuple[Rows, Rows]:
    """Find elementwise operators that optimizers call themselves, outside of their closures.

    Returns:
        The call of ``step()`` around each operator, and the operator. Shape ``(k,)`` each.
    """
    events = ctx.events
    ops = np.flatnonzero(rows_named(events, _ELEMENTWISE, Category.OP))
    caller, ops = select_called(ctx, calls, ops)

    # On a GPU an update launches kernels; an optimizer's counters stay on the host.
    is_update = events.ts_ns[ops] >= updates_begin_ns(events, calls)[np.searchsorted(calls, caller)]
    if uses_device(ctx):
        is_update &= np.isin(ops, ctx.launched_by(ops)[1])

    # A table of which few rows are read needs sparse updates, which no fused step has.
    for table in find_updated_tables(ctx):
        if table.is_hardly_read(MAX_READ_SHARE):
            is_update &= ~np.isin(ops, table.update_rows)
    return caller[is_update], ops[is_update]


def _suggest_fix(ctx: Context, optimizer: str, *, on_gpu: bool) -> str:
    # The Trainer makes the optimizer, unless it is given another class than its own.
    if optimizer == "AdamW" and find_trainer(ctx) is Trainer.TRANSFORMERS:
        return 'Pass `optim="adamw_torch_fused"` to `TrainingArguments`.'
    if not on_gpu:
        return (
            f"Pass `fused=True` to `torch.optim.{optimizer}`{from_torch(ctx, '2.4', 'on a CPU')}, "
            "which updates all parameters in one operator."
        )

    # Fused kernels are faster than foreach ones, where the optimizer has them.
    is_known_new = not from_torch(ctx, "2.0")
    foreach = f"`foreach=True`{'' if is_known_new else ', the default on GPUs since torch 2.0'}"
    if optimizer in _FUSED_ON_GPU:
        return (
            f"Pass `fused=True` to `torch.optim.{optimizer}`"
            f"{from_torch(ctx, _FUSED_ON_GPU[optimizer])}, or {foreach}."
        )
    if optimizer in _FOREACH:
        comma = "" if is_known_new else ","
        return f"Pass {foreach}{comma} to `torch.optim.{optimizer}`."
    return (
        "Use an optimizer of `torch.optim` with `fused=True`, or call `step()` in a function that "
        "`torch.compile` compiles, or write the update with `torch._foreach_*` operators."
    )
