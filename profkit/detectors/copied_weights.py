"""KER022 copied-weights: every step copies all weights, or averages them in new tensors.

What it finds:
    Operators on a CPU, outside of an optimizer and of the network, that cover nearly all parameters
    in each step: copies, as of ``copy.deepcopy(model.state_dict())``, and products and sums that
    make new tensors, as of an average of the weights that is written by hand.

Why it matters:
    Each of these operators goes through all weights once, and new tensors take memory that the
    system has to clear first. An average in place reads and writes each weight once. Its cost is an
    estimate: a share of the operators' time that was measured. That of copies is an upper bound,
    since how many of them are needed is not known.

How to fix it:
    Average in place by ``torch._foreach_lerp_``, or by ``torch.optim.swa_utils.AveragedModel`` with
    ``get_ema_multi_avg_fn``. Copy where the copy is used, and not in each step.

Example:
    ::

        current = copy.deepcopy(model.state_dict())
        for name, value in current.items():
            average[name] = 0.99 * average[name] + 0.01 * value

Use instead:
    ::

        with torch.no_grad():
            torch._foreach_lerp_(averages, list(model.parameters()), 0.01)

Reads:
    Operators with their shapes (``name``, ``Input Dims``, ``ts_ns`` and ``dur_ns`` in nanoseconds),
    those of gradients among them, the annotations of optimizers, the steps, the source lines.

When to ignore this:
    Each copy is used, as in an optimizer that goes back to earlier weights.

Source:
    ``torch.optim.swa_utils`` in PyTorch's documentation; ``aten::_foreach_lerp_`` in
    ``aten/src/ATen/native/native_functions.yaml``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.sampled_python import locate_by_samples
from profkit.index.compute.inputs import Shape, n_elements
from profkit.index.compute.shaped import by_shapes, tensor_shape
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import are_optimizer_steps
from profkit.rule import (
    NO_ROW,
    Basis,
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
    format_bytes,
    format_count,
    measure_saving,
    needs,
    regex,
    select_on_cpu,
    time_with_share,
    torch_names,
)

INFO = RuleInfo(
    id="KER022",
    name="copied-weights",
    title="All weights are copied or averaged anew in every step",
    severity="warning",
    needs=(needs.STEPS, needs.SHAPES),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When copies of weights are a finding.

    Attributes:
        min_weights_share: Minimum share of the weights that the operators cover in each step; a
            part may be frozen, or shared.
        min_saved_share: Minimum share of the steps that the fix saves.
        warning_share: Share from which it is a warning.
    """

    min_weights_share: float = 0.8
    min_saved_share: float = 0.05
    warning_share: float = 0.1


_COPIES: Final = regex(r"^aten::(clone|copy_)$")
_TOUCHES: Final = regex(r"^aten::(clone|copy_|mul|add|sub|lerp|sqrt|div|addcdiv|addcmul)_?$")
_UPDATES: Final = regex(r"^aten::(sqrt|div|addcdiv|addcmul)_?$")
"""What a step of an optimizer that is written by hand has as well."""
_KEPT: Final = 0.2
"""Share of their time that an average in place takes. Measured on one core for networks of 16,000
to 8 million weights: 0.14 to 0.29, and less after a copy."""
_N_PRODUCTS: Final = 2
"""Products of an average for each weight."""
_ELEMENT_BYTES: Final = 4
_MIN_SHAPES: Final = 2


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function that copies or averages all weights in each step."""
    weights = _count_weights(ctx)
    # A gradient of one shape may be any tensor's.
    if len(weights) < _MIN_SHAPES:
        return
    # The code of one function may have a line for each operator.
    by_function: dict[tuple[str | None, str | None], list[Rows]] = {}
    for location, rows in ctx.by_line(_find_touching(ctx, weights)):
        by_function.setdefault((location.file, location.function), []).append(rows)
    for parts in by_function.values():
        yield from _build_finding(ctx, thresholds, weights, np.sort(np.concatenate(parts)))


def _build_finding(
    ctx: Context, thresholds: Thresholds, weights: Counter[Shape], rows: Rows
) -> Iterator[Finding]:
    """Yield the finding on the operators of one function, if they cover the weights."""
    covered = _measure_cover(ctx, weights, rows)
    least = thresholds.min_weights_share
    has_copies = max(covered["clone"], covered["copy_"]) >= least
    is_average = covered["mul"] >= _N_PRODUCTS * least and covered["add"] >= least
    if covered["updates"] or not (is_average or has_copies):
        return

    basis: Basis = "estimate" if is_average else "upper-bound"
    change = ProgramChange(scaled=((rows, _KEPT if is_average else 0.0),))
    saving = measure_saving(ctx, change, basis)
    if not saving.reaches(thresholds.min_saved_share):
        return

    spent = covered_by(ctx.events, rows)
    locations = locate_by_samples(ctx, spent.total_ns) or find_costliest_lines(ctx, rows)
    n_bytes = _ELEMENT_BYTES * sum(n_elements(shape) * n for shape, n in weights.items())
    n_ops = format_count(round(len(rows) / max(1, len(ctx.steps))))
    does = "averages all weights in new tensors" if is_average else "copies all weights"
    copies = ", and copies them," if is_average and has_copies else ""
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The program{at_first(locations)} {does}{copies} in every step, "
            f"{format_bytes(n_bytes)} by {n_ops} operators. They take "
            f"{time_with_share(ctx, spent.total_ns)}."
        ),
        fix=_suggest_fix(is_average=is_average, has_copies=has_copies),
        locations=locations,
        rows=rows,
        evidence={"weights_bytes": n_bytes, "spent_ns": spent.total_ns},
        spans=spent.pairs(),
    )


def _count_weights(ctx: Context) -> Counter[Shape]:
    """Count the weights of each shape, by the gradients of a step."""
    weights: Counter[Shape] = Counter()
    for inputs, rows in by_shapes(
        ctx.events, find_rows(ctx, torch_names.ACCUMULATE_GRAD, Category.OP)
    ):
        shape = tensor_shape(inputs, 0)
        n_of_step = np.bincount(ctx.step_of(rows), minlength=1)
        # A weight that gets several gradients in a step is one weight, and there are few of them.
        weights[shape] += int(np.median(n_of_step[n_of_step > 0])) if shape else 0
    return weights


def _find_touching(ctx: Context, weights: Counter[Shape]) -> Rows:
    """Find the operators on tensors of the weights' shapes that no network or optimizer calls."""
    rows = select_on_cpu(ctx, find_rows(ctx, _TOUCHES, Category.OP))
    is_outer = are_optimizer_steps(ctx.events) | (ctx.events.category == Category.OP)
    has_backward = np.isin(rows, ctx.forward_ops)
    is_own = (ctx.tree.enclosing(is_outer)[rows] == NO_ROW) & ~has_backward

    parts = [
        of_shape
        for inputs, of_shape in by_shapes(ctx.events, rows[is_own])
        if _weight_shape(tensor_shape(inputs, 0), weights)
    ]
    return distinct(np.concatenate([np.zeros(0, dtype=np.intp), *parts])).astype(np.intp)


def _weight_shape(shape: Shape, weights: Counter[Shape]) -> Shape:
    """Return the shape of the weight that a tensor has, or whose bytes it has; empty for others."""
    if shape in weights:
        return shape
    # A copy of a storage is of bytes.
    of_bytes = (w for w in weights if shape == (_ELEMENT_BYTES * n_elements(w),))
    return next(of_bytes, ())


def _measure_cover(ctx: Context, weights: Counter[Shape], rows: Rows) -> dict[str, float]:
    """Measure how often each kind of operator covers all weights in each step, as a share of them.

    Returns:
        By the operator's name, and those that only an optimizer has as ``updates``.
    """
    names = np.array([ctx.events.name_of(row).removeprefix("aten::") for row in rows.tolist()])
    n_steps = max(1, len(ctx.steps))
    n_all = sum(n_elements(shape) * n for shape, n in weights.items())

    covered: dict[str, float] = defaultdict(float)
    for inputs, of_shape in by_shapes(ctx.events, rows):
        shape = _weight_shape(tensor_shape(inputs, 0), weights)
        is_shape = np.isin(rows, of_shape)
        for name in distinct(names[is_shape]).tolist():
            # More of them than weights are of other tensors with the same shape.
            n = min(
                np.count_nonzero(names[is_shape] == name) / n_steps, _N_PRODUCTS * weights[shape]
            )
            kind = "updates" if _UPDATES.search(f"aten::{name}") else name
            covered[kind] += n * n_elements(shape) / max(1, n_all)
    return covered


def _suggest_fix(*, is_average: bool, has_copies: bool) -> str:
    if not is_average:
        return (
            "Copy the weights where the copy is used: every n steps, or when the model is the best "
            "so far; into tensors that are allocated once, by `torch._foreach_copy_`."
        )
    fix = (
        "Average in place, under `torch.no_grad()`: `torch._foreach_lerp_(averages, weights, "
        "1 - decay)`, or `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`."
    )
    return f"{fix} It needs no copy of them." if has_copies else fix
