"""KER005 unfused-attention: attention runs as separate products and a softmax.

What it finds:
    A softmax between two batched matrix products on a GPU, with nothing but elementwise operators
    in between: attention that writes its whole matrix of scores to memory. This is attention by
    hand, ``scaled_dot_product_attention`` where it falls back to its "math" implementation, and
    ``nn.MultiheadAttention`` where it returns the weights.

Why it matters:
    The scores of each head have the square of the sequence's length. Scaling, mask, softmax and
    dropout each read and write all of them, while a fused kernel keeps them in the multiprocessor's
    own memory. The cost is what the steps take less in a replay of the recording without the
    kernels between the two products and without their backward passes. The products stay as they
    are; a fused kernel computes them faster, too, because it reads no scores. That, and the memory
    of the scores, is not in the figure.

How to fix it:
    Call ``torch.nn.functional.scaled_dot_product_attention``, with the mask as ``attn_mask`` or
    ``is_causal=True`` and the dropout as ``dropout_p``. Load models of Transformers with
    ``attn_implementation="sdpa"``. Call ``nn.MultiheadAttention`` with ``need_weights=False``.

Example:
    ::

        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        y = scores.softmax(-1) @ v

Use instead:
    ::

        y = F.scaled_dot_product_attention(q, k, v)

Reads:
    Operators (``name``, ``ts_ns`` in nanoseconds) and the kernels that they launched (``dur_ns`` in
    nanoseconds), sequence numbers, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The program uses the weights of the attention themselves, or adds to the scores something that
    no fused kernel supports; ``torch.nn.attention.flex_attention`` fuses changes of single scores.

Source:
    ``torch.nn.functional.scaled_dot_product_attention`` and ``torch.nn.MultiheadAttention`` in
    PyTorch's documentation; "FlashAttention: Fast and Memory-Efficient Exact Attention with
    IO-Awareness" (Dao et al., 2022).
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.python_calls import are_within
from profkit.index.device.attention import find_attentions
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
    busy_ns,
    dataclass,
    device_time,
    find_costliest_lines,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_per_step,
    time_with_busy_share,
    times_per_step,
)

INFO = RuleInfo(
    id="KER005",
    name="unfused-attention",
    title="Attention as separate products and softmax",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When attention is a finding.

    Attributes:
        min_busy_share: Minimum share of the GPU's busy time that the products and all between them
            take: with less, attention is a small part of the program.
        min_saved_share: Minimum share of the steps without the kernels between the products.
        warning_share: Share of the steps that these kernels take from which it is a warning.
    """

    min_busy_share: float = 0.05
    min_saved_share: float = 0.01
    warning_share: float = 0.05


# What scaled_dot_product_attention falls back to: operators of its own, each with a kernel.
_TRANSFORMERS_MODEL: Final = regex(r"(^|[/\\])transformers[/\\]models[/\\]")
_MATH: Final = regex(r"^aten::_scaled_dot_product_attention_math")
# The fast path of nn.MultiheadAttention in inference, fused unless it returns the weights.
_MODULE: Final = regex(r"^aten::_native_multi_head_attention$")


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all attention that is not fused."""
    attention = find_attentions(ctx.events, ctx.tree, ctx.launches)
    attention = attention.select(in_windows(ctx, attention.softmax))
    # With the products, to tell whether attention matters at all. The cost is without them.
    spent = device_time(ctx, np.append(attention.products, attention.between))
    share = spent.total_ns / busy_ns(ctx)
    if not len(attention.softmax) or share < thresholds.min_busy_share:
        return

    # A fused kernel still computes the products, and keeps what is between in registers.
    saving = measure_saving(ctx, ProgramChange(scaled=((attention.between, 0.0),)), "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    between_ns = ctx.events.dur_ns[attention.between]
    softmax_rows = attention.softmax[attention.of_between]
    locations = find_costliest_lines(ctx, softmax_rows, between_ns)
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high",
        message=(
            f"Attention{at_first(locations)} runs as separate kernels, "
            f"{times_per_step(ctx, len(attention.softmax))}: its products, softmax and what is "
            f"between take {time_with_busy_share(ctx, spent.total_ns)}, "
            f"{time_per_step(ctx, int(between_ns.sum()))} of it without the products."
        ),
        fix=_suggest_fix(ctx, attention.softmax),
        locations=locations,
        rows=attention.softmax,
        evidence={
            "busy_share": round(share, 4),
            "products_ns": int(ctx.events.dur_ns[attention.products].sum()),
            "between_ns": int(between_ns.sum()),
        },
        spans=spent.pairs(),
    )


def _suggest_fix(ctx: Context, softmax: Rows) -> str:
    """Suggest the fix for the function that called the operators."""

    def are_in_operator(pattern: re.Pattern[str]) -> bool:
        caller = ctx.tree.nearest(rows_named(ctx.events, pattern, Category.OP))[softmax]
        return bool((caller != NO_ROW).all())

    if are_in_operator(_MATH):
        return (
            "`scaled_dot_product_attention` falls back to separate kernels: call it within "
            "`torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)`, which warns why no "
            "fused kernel can run, such as for the dtype, the mask or the size of the heads."
        )
    if are_in_operator(_MODULE):
        return "Call `nn.MultiheadAttention` with `need_weights=False`, which runs a fused kernel."
    if are_within(ctx, softmax, _TRANSFORMERS_MODEL):
        return (
            'Load the model with `attn_implementation="sdpa"`, or with a newer version of '
            "Transformers if this one has no such implementation of the model."
        )
    return (
        "Call `torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=...)`; load "
        'models of Transformers with `attn_implementation="sdpa"`.'
    )
