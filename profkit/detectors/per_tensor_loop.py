"""KER014 per-tensor-loop: a loop runs a small kernel for each of many tensors.

What it finds:
    Elementwise operators in place, or norms, that the program itself calls on one tensor after the
    other, outside of an optimizer's step: a moving average of the weights, clipping or zeroing of
    gradients, an update of its own. The tensors have several shapes, and the operators
    have versions for lists of tensors (``torch._foreach_*``).

Why it matters:
    Each operator costs the host some microseconds whatever its size, and each kernel is often
    shorter than its launch. The cost is what the steps take less in a replay of the recording
    without the Python between these operators. On a GPU they take a tenth of their time on the
    host there, with all kernels kept; one kernel for many tensors takes less time, too, which is
    not in the figure. On a CPU they keep their time, but for averages of ``mul_`` and ``add_``,
    for which ``torch._foreach_lerp_`` passes over memory three times instead of five.

How to fix it:
    Call the operator once with lists of all tensors. For a moving average of weights there is
    ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn``, for clipping
    ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_``, for gradients
    ``optimizer.zero_grad()``.

Example:
    ::

        for average, weight in zip(averages, weights):
            average.mul_(0.999).add_(weight, alpha=0.001)

Use instead:
    ::

        torch._foreach_lerp_(averages, weights, 0.001)

Reads:
    Operators (``name``, ``Input Dims``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the annotations
    of optimizers, the kernels that they launched, source lines.

When to ignore this:
    The tensors are not there at the same time, or each depends on the one before.

Source:
    ``torch.optim.swa_utils`` and ``torch.nn.utils.clip_grad_norm_`` (``foreach``) in PyTorch's
    documentation; ``torch/_foreach`` operators in
    ``aten/src/ATen/native/native_functions.yaml``.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.tensor_loops import (
    KEPT_ON_GPU,
    find_python_between,
    kept_on_cpu,
)
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import are_optimizer_steps
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
    format_count,
    measure_saving,
    needs,
    regex,
    time_per_step,
    time_with_share,
    uses_device,
)

INFO = RuleInfo(
    id="KER014",
    name="per-tensor-loop",
    title="A loop runs a kernel for each tensor",
    severity="warning",
    needs=(needs.OPERATORS, needs.SHAPES),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a loop over tensors is a finding.

    Attributes:
        min_operators_count: Minimum operators of the loop per step.
        min_shapes_count: Minimum different shapes: a loop over time has tensors of one shape, each
            of which depends on the one before.
        min_saved_share: Minimum share of the steps that the fix saves.
        warning_share: Share from which it is a warning.
    """

    min_operators_count: int = 20
    min_shapes_count: int = 3
    min_saved_share: float = 0.01
    warning_share: float = 0.03


_FOREACH: Final = regex(
    r"^aten::((abs|add|addcdiv|addcmul|clamp_max|clamp_min|copy|div|exp|lerp|mul|neg|pow|reciprocal"
    r"|sqrt|sub|zero)_|norm|linalg_vector_norm)$"
)
"""Operators of which there is one for lists of tensors; those for new tensors are left out, since
they are parts of networks."""
_NORMS: Final = frozenset({"norm", "linalg_vector_norm"})
_OF_AVERAGES: Final = frozenset({"lerp_", "mul_"})
_MAX_NAMES: Final = 2
_KEPT_OF_AVERAGES: Final = 0.6
"""Share that ``_foreach_lerp_`` takes on a CPU of the time of ``mul_`` and ``add_`` that grows with
the tensors: three passes over memory instead of five. With torch 2.13 it took 0.16 to 0.71 of the
loop's time, Python included."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function that runs an operator for each of many tensors."""
    rows = _find_direct_operators(ctx)
    # A loop may have one line for each operator, and they have one fix.
    by_function: dict[tuple[str | None, str | None], list[Rows]] = {}
    for location, line_rows in ctx.by_line(rows):
        if location.file is not None:
            by_function.setdefault((location.file, location.function), []).append(line_rows)

    n_steps = max(1, len(ctx.steps))
    for lines in by_function.values():
        loop = np.sort(np.concatenate(lines))
        if len(loop) < thresholds.min_operators_count * n_steps:
            continue
        n_shapes = len(np.unique(ctx.events.input_dims.at(loop)))
        if n_shapes >= thresholds.min_shapes_count:
            yield from _build_finding(ctx, thresholds, loop, n_shapes)


def _find_direct_operators(ctx: Context) -> Rows:
    """Find the operators in the steps that the program itself calls.

    Of a program that uses a GPU they are those that launch kernels.
    """
    events, tree = ctx.events, ctx.tree
    rows = find_rows(ctx, _FOREACH, Category.OP)

    # Those of an optimizer are another finding's; within operators they are PyTorch's own.
    is_outer = are_optimizer_steps(ctx.events) | (events.category == Category.OP)
    rows = rows[tree.enclosing(is_outer)[rows] == NO_ROW]

    if not uses_device(ctx):
        return np.asarray(rows)

    # A copy by the copy engine has no version for lists.
    work, launching = ctx.launched_by(rows)
    return distinct(launching[np.isin(work, events.kernels)].astype(np.intp))


def _build_finding(
    ctx: Context, thresholds: Thresholds, loop: Rows, n_shapes: int
) -> Iterator[Finding]:
    """Yield the finding on a function's operators, if one operator for all saves enough."""
    work, _ = ctx.launched_by(loop)
    names = Counter(ctx.events.name_of(row).removeprefix("aten::") for row in loop.tolist())
    kept = KEPT_ON_GPU if len(work) else _kept_on_cpu(ctx, loop, names)
    between = find_python_between(ctx, loop).pairs()
    change = ProgramChange(scaled=((loop, kept),), host_time=between)
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    locations = find_costliest_lines(ctx, loop)
    spent = covered_by(ctx.events, loop)
    device_ns = covered_by(ctx.events, work).total_ns
    for_kernels = f" on the host for {time_per_step(ctx, device_ns)} of kernels"
    n_ops = format_count(round(len(loop) / max(1, len(ctx.steps))))
    each = " per step" if len(ctx.steps) else ""
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The loop{at_first(locations)} runs {n_ops} operators{each} on one tensor after the "
            f"other, of {n_shapes} shapes. They take {time_with_share(ctx, spent.total_ns)}"
            f"{for_kernels if len(work) else ''}."
        ),
        fix=_suggest_fix(names),
        locations=locations,
        rows=loop,
        evidence={"operators_ns": spent.total_ns},
        spans=spent.pairs(),
    )


def _kept_on_cpu(ctx: Context, loop: Rows, names: Counter[str]) -> float:
    """Return the share of the operators' time on a CPU that operators for lists take."""
    is_average = names["mul_"] == names["add_"] == names.total() / 2
    return kept_on_cpu(ctx, loop, _KEPT_OF_AVERAGES) if is_average else 1.0


def _suggest_fix(names: Counter[str]) -> str:
    """Return the operators for lists that do the same, the most frequent first."""
    # Both norms are the same one for lists.
    lists = ["norm" if name in _NORMS else name for name, _ in names.most_common(_MAX_NAMES)]
    calls = " and ".join(f"`torch._foreach_{name}`" for name in dict.fromkeys(lists))
    fix = f"Call {calls} once with lists of all tensors."
    if not _OF_AVERAGES.isdisjoint(names):
        fix += (
            " For an average of the weights use `torch.optim.swa_utils.AveragedModel` with "
            "`get_ema_multi_avg_fn`."
        )
    return fix
