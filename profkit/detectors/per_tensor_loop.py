"""KER014 per-tensor-loop: a loop runs a small kernel for each of many tensors.

What it finds:
    Elementwise operators in place, or norms, that the program itself calls on one tensor after the
    other, outside of an optimizer's step: a moving average of the weights, clipping or zeroing of
    gradients, an update of its own. The tensors have several shapes, and the operators
    have versions for lists of tensors (``torch._foreach_*``). A norm may be written as a sum of
    squares, as in ``gradient.pow(2).sum().item()``. Without source lines, the operators have to
    follow each other with no other one between them.

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

from profkit.engine.families.sampled_python import locate_by_samples
from profkit.engine.families.tensor_loops import (
    KEPT_ON_GPU,
    find_dense_loops,
    find_norms,
    find_python_between,
    kept_on_cpu,
)
from profkit.index.distinct import distinct, united
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import are_optimizer_steps, names_matching, rows_named
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
    torch_names,
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
    r"^aten::((abs|add|addcdiv|addcmul|clamp|clamp_max|clamp_min|copy|div|exp|lerp|mul|neg|pow"
    r"|reciprocal|sqrt|sub|zero)_|norm|linalg_vector_norm)$"
)
"""Operators of which there is one for lists of tensors; those for new tensors are left out, since
they are parts of networks."""
_NORM: Final = "norm"
_NORM_PARTS: Final = frozenset(
    {_NORM, "linalg_vector_norm", "pow", "square", "mul", "abs", "sum", "max", "amax"}
)
"""Operators of a norm, written as such or by hand."""
_SCALES: Final = frozenset({"mul_", "div_"})
_CLAMPS: Final = frozenset({"clamp_", "clamp_min_", "clamp_max_"})
_AVERAGES: Final = frozenset({"lerp_", "mul_", "add_"})
_MAX_NAMES: Final = 2
_READ: Final = regex(r"^aten::item$")
_BY_HAND: Final = regex(r"^aten::(pow|square|mul|abs|sum|max|amax)$")
_KEPT_OF_NORMS: Final = 0.5
"""Share that ``_foreach_norm`` takes on a CPU of the time of a power and its sum that grows with
the tensors: 0.50 for a million elements each, 0.53 for 260 thousand, with torch 2.13.
``clip_grad_norm_`` of 242 small tensors saved no more than the loop's Python and its reads."""
_KEPT_OF_AVERAGES: Final = 0.6
"""Share that ``_foreach_lerp_`` takes on a CPU of the time of ``mul_`` and ``add_`` that grows with
the tensors: three passes over memory instead of five. With torch 2.13 it took 0.16 to 0.71 of the
loop's time, Python included."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function that runs an operator for each of many tensors."""
    min_operators = thresholds.min_operators_count
    rows = _find_direct_operators(ctx)
    # A loop may have one line for each operator, and they have one fix.
    by_function: dict[tuple[str, str | None], list[Rows]] = {}
    unlocated = [rows[:0]]
    for location, line_rows in ctx.by_line(rows):
        if location.file is None:
            unlocated.append(line_rows)
        else:
            by_function.setdefault((location.file, location.function), []).append(line_rows)

    loops = [np.sort(np.concatenate(lines)) for lines in by_function.values()]
    loops.append(find_dense_loops(ctx, np.concatenate(unlocated), min_operators))

    n_steps = max(1, len(ctx.steps))
    for loop in loops:
        is_read = names_matching(ctx.events, _READ)[ctx.events.name[loop]]
        n_shapes = len(np.unique(ctx.events.input_dims.at(loop[~is_read])))
        if len(loop) >= min_operators * n_steps and n_shapes >= thresholds.min_shapes_count:
            yield from _build_finding(ctx, thresholds, loop, n_shapes)


def _find_direct_operators(ctx: Context) -> Rows:
    """Find the operators in the steps that the program itself calls.

    Of a program that uses a GPU they are those that launch kernels.
    """
    events, tree = ctx.events, ctx.tree
    computing, reading = find_norms(ctx)
    rows = united(find_rows(ctx, _FOREACH, Category.OP), computing)

    # Those of an optimizer are another finding's; within operators they are PyTorch's own.
    is_outer = are_optimizer_steps(events) | (events.category == Category.OP)
    is_outer |= rows_named(
        events, torch_names.OPTIMIZER_ZERO_GRAD, Category.ANNOTATION, Category.OP
    )
    rows = rows[tree.enclosing(is_outer)[rows] == NO_ROW]

    # A read of a GPU's number waits, which is another finding's.
    if not uses_device(ctx):
        reading = reading[tree.enclosing(is_outer)[reading] == NO_ROW]
        return united(rows, reading)

    # A copy by the copy engine has no version for lists.
    work, launching = ctx.launched_by(rows)
    return distinct(launching[np.isin(work, events.kernels)].astype(np.intp))


def _build_finding(
    ctx: Context, thresholds: Thresholds, loop: Rows, n_shapes: int
) -> Iterator[Finding]:
    """Yield the finding on a function's operators, if one operator for all saves enough."""
    work, _ = ctx.launched_by(loop)
    is_read = names_matching(ctx.events, _READ)[ctx.events.name[loop]]
    ops, reads = loop[~is_read], loop[is_read]
    names = Counter(ctx.events.name_of(row).removeprefix("aten::") for row in ops.tolist())
    kept = _scale_on_gpu(ops) if len(work) else _scale_on_cpu(ctx, ops, names)
    between = find_python_between(ctx, loop).pairs()
    change = ProgramChange(scaled=(*kept, (reads, 0.0)), host_time=between)
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    spent = covered_by(ctx.events, loop)
    by_samples = locate_by_samples(ctx, spent.total_ns, are_direct=True)
    locations = by_samples or find_costliest_lines(ctx, loop)
    device_ns = covered_by(ctx.events, work).total_ns
    for_kernels = f" on the host for {time_per_step(ctx, device_ns)} of kernels"
    n_ops = format_count(round(len(loop) / max(1, len(ctx.steps))))
    each = " per step" if len(ctx.steps) else ""
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"{'The' if by_samples or ctx.has_lines else 'A'} loop{at_first(locations)} runs "
            f"{n_ops} operators{each} on one tensor after the other, of {n_shapes} shapes. They "
            f"take {time_with_share(ctx, spent.total_ns)}{for_kernels if len(work) else ''}."
        ),
        fix=_suggest_fix(names),
        locations=locations,
        rows=loop,
        evidence={"operators_ns": spent.total_ns},
        spans=spent.pairs(),
    )


def _is_average(names: Counter[str]) -> bool:
    """Return whether a loop's operators are those of a moving average."""
    if names["lerp_"]:
        return _AVERAGES.issuperset(names)
    return names["mul_"] == names["add_"] == names.total() / 2


def _scale_on_gpu(ops: Rows) -> tuple[tuple[Rows, float], ...]:
    return ((ops, KEPT_ON_GPU),)


def _scale_on_cpu(ctx: Context, ops: Rows, names: Counter[str]) -> tuple[tuple[Rows, float], ...]:
    """Return the operators that operators for lists make faster on a CPU, and what they keep."""
    if _is_average(names) and not names["lerp_"]:
        return ((ops, kept_on_cpu(ctx, ops, _KEPT_OF_AVERAGES)),)

    # A norm by hand reads what its power has written. The call of each operator is kept.
    norms = ops[names_matching(ctx.events, _BY_HAND)[ctx.events.name[ops]]]
    if not len(norms):
        return ()
    work_share = kept_on_cpu(ctx, norms, 1.0)
    return ((norms, 1 - (1 - _KEPT_OF_NORMS) * work_share),)


def _suggest_fix(names: Counter[str]) -> str:
    """Return the function for lists of tensors that does the same."""
    if _is_average(names):
        return (
            "Call `torch._foreach_lerp_` once with lists of all tensors, or for an average of the "
            "weights use `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`."
        )

    has_norms = not _NORM_PARTS.isdisjoint(names)
    if has_norms and _NORM_PARTS.union(_SCALES).issuperset(names):
        if not _SCALES.isdisjoint(names):
            return (
                "Call `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`, which "
                "computes the norm of all gradients and scales them by a few operators for lists."
            )
        return "Call `torch._foreach_norm` once with a list of all tensors."
    if _CLAMPS.issuperset(names):
        return (
            "Call `torch._foreach_clamp_min_` and `torch._foreach_clamp_max_` once with a list of "
            "all tensors; for gradients `torch.nn.utils.clip_grad_value_` does so."
        )

    # The most frequent first. A norm by hand is one, too.
    lists = [_NORM if name in _NORM_PARTS else name for name, _ in names.most_common(_MAX_NAMES)]
    calls = " and ".join(f"`torch._foreach_{name}`" for name in dict.fromkeys(lists))
    return f"Call {calls} once with lists of all tensors."
