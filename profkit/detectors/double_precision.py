"""KER017 double-precision: products and convolutions in float64.

What it finds:
    Matrix products and convolutions of tensors in float64 that take a share of the steps: on a CPU,
    and on GPUs with few units for float64.

Why it matters:
    Arrays of NumPy are in float64 by default, and a model that is converted to fit them computes in
    twice as many bytes. On a CPU a vector unit holds half as many of these numbers: products were
    measured to take 2.1 times as long, large convolutions 3 to 4 times, small ones as long (torch
    2.13). GeForce and other GPUs without fast float64 have a 32nd or 64th of their units for it.
    The cost is a replay in which they take half as long, on a CPU with all other operators in
    float64, or on such GPUs that part.

How to fix it:
    Convert the data to float32 where it is loaded, and leave the model in float32: without
    ``.double()``, ``.to(x.dtype)`` or ``torch.set_default_dtype(torch.float64)``.

Example:
    ::

        features = torch.from_numpy(table)
        model = make_model().double()

Use instead:
    ::

        features = torch.from_numpy(table).float()
        model = make_model()

Reads:
    Operators with their types (``Input type``, ``ts_ns`` and ``dur_ns`` in nanoseconds), their
    kernels, the compute capability of GPUs, the steps, the source lines.

When to ignore this:
    The results need more than seven digits: Gaussian processes, physics, gradients that are checked
    by finite differences.

Source:
    "Arithmetic Instructions" in the CUDA C++ Programming Guide: 64-bit results per clock cycle and
    multiprocessor by compute capability; "Data types" in NumPy's manual (the default is
    ``float64``); ``torch.from_numpy``, which keeps the type.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.input_types import are_of_types
from profkit.index.device.streams import device_of
from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import united
from profkit.index.intervals import covered_by, unite
from profkit.rule import (
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
    measure_saving,
    needs,
    regex,
    select_on_cpu,
    time_with_share,
    times_per_step,
)

INFO = RuleInfo(
    id="KER017",
    name="double-precision",
    title="Products and convolutions in float64",
    severity="note",
    needs=(needs.SHAPES,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When float64 is a finding.

    Attributes:
        min_saved_share: Minimum share of the steps that float32 saves: less is not worth a change
            of the type.
        assumed_kept_share: Assumed share of their time that operators on a CPU take in float32.
        warning_share: Share of the steps that it saves on a GPU from which it is a warning. On a
            CPU it remains a note, as float64 is at most a few times as slow and may be meant.
    """

    min_saved_share: float = 0.05
    assumed_kept_share: float = 0.5
    warning_share: float = 0.1


_PRODUCTS: Final = regex(
    r"^aten::(mm|addmm_?|bmm|baddbmm_?|mv|addmv_?|dot|convolution(_backward)?)$"
)
_OPERATORS: Final = regex(r"^aten::(?!to$|_to_copy$|copy_$)")
_MIN_WORK_NS: Final = 10_000
"""Shorter operators spend most of their time on their call, which no type makes faster."""
_DOUBLE: Final = ("double", "c10::complex<double>")
_RATIOS: Final = {
    (5, 0): 1 / 32, (5, 2): 1 / 32, (6, 1): 1 / 32, (7, 5): 1 / 32, (8, 6): 1 / 64, (8, 9): 1 / 64,
    (12, 0): 1 / 64,
}  # fmt: skip
"""Results in float64 per result in float32, by compute capability. GPUs of data centers have half
as many units or more, and tensor cores for float64: there it may be meant."""
_FIX: Final = (
    "Convert the data to float32 where it is loaded, as with `torch.from_numpy(x).float()`, and "
    "leave the model in float32, without `.double()` or `.to(x.dtype)`, unless the results need "
    "more than 7 digits."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all products and convolutions in float64."""
    rows = find_rows(ctx, _PRODUCTS, Category.OP)
    rows = rows[are_of_types(ctx, rows, _DOUBLE)]
    rows = outermost_calls(ctx.events, ctx.tree, rows)
    if not len(rows):
        return

    on_cpu = select_on_cpu(ctx, rows)
    work, launching = ctx.launched_by(rows)
    ratio, slow_work = _select_slow_work(ctx, work)
    converted = _find_converted(ctx, on_cpu)
    change = ProgramChange(scaled=((converted, thresholds.assumed_kept_share), (slow_work, ratio)))
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    # On other GPUs float64 is as fast as it can be, and not a part of the finding.
    launched_slow = launching[np.isin(work, slow_work)]
    rows = united(on_cpu, launched_slow)
    spent = unite(covered_by(ctx.events, on_cpu), covered_by(ctx.events, slow_work))
    locations = find_costliest_lines(ctx, rows)
    is_warning = len(slow_work) and saving.severity(thresholds.warning_share) == "warning"
    yield saving.finding(
        INFO,
        severity="warning" if is_warning else "note",
        confidence="medium",
        message=(
            f"Products and convolutions{at_first(locations)} run {times_per_step(ctx, len(rows))} "
            f"in float64, which takes {time_with_share(ctx, spent.total_ns)}."
        ),
        fix=_FIX,
        locations=locations,
        rows=rows,
        evidence={"spent_ns": spent.total_ns, "ratio": ratio},
        spans=spent.pairs(),
    )


def _find_converted(ctx: Context, products: Rows) -> Rows:
    """Find all operators that a CPU computes in float32 with the data of some products."""
    if not len(products):
        return products
    rows = find_rows(ctx, _OPERATORS, Category.OP)
    rows = select_on_cpu(ctx, rows[are_of_types(ctx, rows, _DOUBLE)])

    is_long = ctx.events.dur_ns[rows] >= _MIN_WORK_NS
    return outermost_calls(ctx.events, ctx.tree, united(products, rows[is_long]))


def _select_slow_work(ctx: Context, work: Rows) -> tuple[float, Rows]:
    """Select the work on GPUs with few units for float64, and the share of time that it keeps.

    Of several such GPUs the fastest counts.
    """
    capabilities = {
        ordinal: device.compute_capability for ordinal, device in ctx.trace.devices.items()
    }
    # GPUs of data centers are missing: a product in float64 is no mistake there.
    ratios = {
        ordinal: _RATIOS[capability]
        for ordinal, capability in capabilities.items()
        if capability in _RATIOS
    }

    is_slow = np.isin(device_of(ctx.events, work), list(ratios))
    return max(ratios.values(), default=1.0), work[is_slow]
