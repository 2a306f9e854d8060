"""KER025 half-products: products in half precision on a CPU without arithmetic for it.

What it finds:
    Matrix products in float16 or bfloat16 on a CPU that has no instructions for products in this
    type: ``torch.autocast`` left on for a CPU, or a model that was loaded in half precision.

Why it matters:
    Without such instructions each number is converted before it is multiplied. A product of eight
    rows or more takes 3.3 to 5.7 times as long in bfloat16 as in float32, in float16 4.3 to 11
    times, and a batched one 120 times (measured with torch 2.13 and 2.14 on a CPU with AVX-512).
    The cost is a replay in which they take an assumed quarter of their time, in float16 15%.

How to fix it:
    Leave out ``torch.autocast`` on such a CPU, or convert the model and its inputs to float32.

Example:
    ::

        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x)

Use instead:
    ::

        loss = model(x)

Reads:
    Operators (``name``, ``Input type``, shapes, ``ts_ns`` and ``dur_ns`` in nanoseconds), the
    types that the processor multiplies, which profkit records, source lines.

When to ignore this:
    The model fits into memory in half precision alone; or the program runs on a GPU elsewhere, and
    only this recording was made on a CPU.

Source:
    ``use_mkldnn_bf16_matmul`` and ``use_mkldnn_fp16_matmul`` in
    ``aten/src/ATen/native/mkldnn/Matmul.cpp``, and the instructions that they ask for; "Intel
    Architecture Instruction Set Extensions", AVX512_BF16, AVX512_FP16 and AMX.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.input_types import are_of_types
from profkit.index.compute.shaped import by_shapes, tensor_shape
from profkit.index.intervals import covered_by
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

TYPES: Final = needs.Need(
    name="types of the processor",
    reason="The types that the processor multiplies were not recorded.",
    remedy="Record with `profkit run` or `profkit.trace` on Linux.",
    is_met=lambda ctx: ctx.trace.capture is not None and ctx.trace.capture.half_types is not None,
    requires=(needs.SHAPES,),
)

INFO = RuleInfo(
    id="KER025",
    name="half-products",
    title="Products in half precision on a CPU without arithmetic for it",
    severity="warning",
    needs=(TYPES,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When products in half precision are a finding.

    Attributes:
        min_saved_share: Minimum share of the steps that float32 saves: where a change of the type
            pays for the edit.
        bfloat16_kept_share: Assumed share of their time that products in bfloat16 take in float32.
        float16_kept_share: The same of products in float16.
    """

    min_saved_share: float = 0.05
    bfloat16_kept_share: float = 0.25
    float16_kept_share: float = 0.15


_PRODUCTS: Final = regex(r"^aten::(mm|bmm|addmm_?|baddbmm_?)$")
_ADDED: Final = regex(r"^aten::(addmm|baddbmm)_?$")
"""Products whose first input is what they add to."""
_MIN_SIDE: Final = 8
"""With fewer rows or columns a product reads its weights once and takes as long as that: in half
precision half of it."""
_NAMES: Final = {"bfloat16": "c10::BFloat16", "float16": "c10::Half"}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each type of products that the processor has no arithmetic for."""
    capture = ctx.trace.capture
    has_types = capture.half_types if capture is not None else None
    products = _select_large(ctx, select_on_cpu(ctx, find_rows(ctx, _PRODUCTS, Category.OP)))
    kept_shares = {
        "bfloat16": thresholds.bfloat16_kept_share,
        "float16": thresholds.float16_kept_share,
    }

    for name, kept_share in kept_shares.items():
        rows = products[are_of_types(ctx, products, (_NAMES[name],))]
        if not len(rows) or has_types is None or name in has_types:
            continue
        saving = measure_saving(ctx, ProgramChange(scaled=((rows, kept_share),)), "estimate")
        if not saving.reaches(thresholds.min_saved_share):
            continue

        spent, locations = covered_by(ctx.events, rows), find_costliest_lines(ctx, rows)
        yield saving.finding(
            INFO,
            confidence="high",
            message=(
                f"Products{at_first(locations)} run {times_per_step(ctx, len(rows))} in {name}, "
                f"which takes {time_with_share(ctx, spent.total_ns)}. This processor has no "
                "arithmetic for it and converts each number first."
            ),
            fix=(
                "Compute in float32 on this CPU: leave out `torch.autocast`, or convert the model "
                "and its inputs with `.float()`."
            ),
            locations=locations,
            rows=rows,
            evidence={"type": name, "spent_ns": spent.total_ns},
            spans=spent.pairs(),
        )


def _select_large(ctx: Context, products: Rows) -> Rows:
    """Select the products of matrices with several rows and columns."""
    is_added = np.isin(products, find_rows(ctx, _ADDED, Category.OP))
    large = [
        rows
        for first, of_kind in ((0, products[~is_added]), (1, products[is_added]))
        for inputs, rows in by_shapes(ctx.events, of_kind)
        if min(
            (*tensor_shape(inputs, first)[-2:], *tensor_shape(inputs, first + 1)[-2:]), default=0
        )
        >= _MIN_SIDE
    ]
    return np.sort(np.concatenate(large)) if large else products[:0]
