"""KER005 unfused-attention: attention runs as separate products and a softmax.

What it finds:
    A softmax between two batched matrix products, with nothing but elementwise operators in
    between: attention that writes its whole matrix of scores to memory. This is attention by hand,
    on a GPU also ``scaled_dot_product_attention`` where it falls back to its "math" implementation,
    and ``nn.MultiheadAttention`` where it returns the weights. On a CPU there is a fused
    implementation for attention without dropout alone: with it, ``scaled_dot_product_attention``
    and the layers that call it, such as ``nn.TransformerEncoderLayer`` in training, run the
    operators one by one.

Why it matters:
    The scores of each head have the square of the sequence's length. Scaling, mask, softmax and
    dropout each read and write all of them, while a fused kernel keeps them in the multiprocessor's
    own memory. The cost is what the steps take less in a replay of the recording without the
    kernels between the two products and without their backward passes. A fused kernel reads and
    writes no scores in the products either. So where the shapes were recorded, the cost is a range:
    at its upper end the products are as fast as in a fused kernel, at 35% of a GPU's known peak,
    or on a CPU as the fastest other products of the program. The memory of the scores is not in
    the figure.

How to fix it:
    Call ``torch.nn.functional.scaled_dot_product_attention``, with the mask as ``attn_mask`` or
    ``is_causal=True`` and the dropout as ``dropout_p``. Load models of Transformers with
    ``attn_implementation="sdpa"``. Call ``nn.MultiheadAttention`` with ``need_weights=False``. On a
    CPU set the dropout of the attention to 0, and keep that of the other layers: the random numbers
    for its scores alone may take half of the step.

Example:
    ::

        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        y = scores.softmax(-1) @ v

Use instead:
    ::

        y = F.scaled_dot_product_attention(q, k, v)

Reads:
    Operators (``name``, shapes, ``ts_ns`` and ``dur_ns`` in nanoseconds) and the kernels that they
    launched (``dur_ns`` in nanoseconds), sequence numbers, GPU busy time in nanoseconds, source
    lines.

When to ignore this:
    The program uses the weights of the attention themselves, or adds to the scores something that
    no fused kernel supports; ``torch.nn.attention.flex_attention`` fuses changes of single scores.

Source:
    ``torch.nn.functional.scaled_dot_product_attention`` and ``torch.nn.MultiheadAttention`` in
    PyTorch's documentation; "FlashAttention: Fast and Memory-Efficient Exact Attention with
    IO-Awareness" (Dao et al., 2022); "FlashAttention-3" (Shah et al., 2024) on the 35% to 70% of
    the peak that fused kernels reach; ``use_flash_attention_cpp`` in
    ``ATen/native/transformers/sdp_utils_cpp.cpp``.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.engine.families.python_calls import are_within
from profkit.index.compute.op_work import UNKNOWN
from profkit.index.compute.peaks import PRECISION_OF, Precision
from profkit.index.device.attention import Attentions, find_attentions, find_host_work
from profkit.index.device.matmul_precision import matmul_precision
from profkit.index.device.streams import device_of
from profkit.index.distinct import distinct, marked
from profkit.index.host.source import NO_FRAME
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Float64s,
    Int32s,
    Mask,
    MeasuredSaving,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    busy_ns,
    dataclass,
    device_time,
    find_costliest_lines,
    in_windows,
    measure_savings,
    needs,
    regex,
    time_per_step,
    time_with_busy_share,
    time_with_share,
    times_per_step,
    uses_device,
    windows_ns,
)

_WORK: Final = replace(
    needs.DEVICE_WORK,
    name="device work, or a CPU's",
    is_met=lambda ctx: ctx.has_device_work or not uses_device(ctx),
)

INFO = RuleInfo(
    id="KER005",
    name="unfused-attention",
    title="Attention as separate products and softmax",
    severity="warning",
    needs=(needs.OPERATORS, _WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When attention is a finding.

    Attributes:
        min_busy_share: Minimum share of the GPU's busy time, or of the steps on a CPU, that the
            products and all between them take: with less, attention is a small part of the program.
        min_saved_share: Minimum share of the steps without the kernels between the products.
        warning_share: Share of the steps that these kernels take from which it is a warning.
    """

    min_busy_share: float = 0.05
    min_saved_share: float = 0.01
    warning_share: float = 0.05


# What scaled_dot_product_attention falls back to: operators of its own, each with a kernel.
_TRANSFORMERS_MODEL: Final = regex(r"(^|[/\\])transformers[/\\]models[/\\]")
_OF_TRANSFORMERS: Final = (
    'Load the model with `attn_implementation="sdpa"`, or with a newer version of Transformers if '
    "this one has no such implementation of the model."
)
_OF_TIMM: Final = (
    "Call `timm.layers.set_fused_attn(True)` before the model is made, or take a newer version of "
    "timm if this one has no fused attention for the model."
)
_OF_X_TRANSFORMERS: Final = "Pass `attn_flash=True` to the layers of x-transformers."
_OPTIONS: Final = {
    "transformers": (_TRANSFORMERS_MODEL, _OF_TRANSFORMERS),
    "timm": (regex(r"(^|[/\\])timm[/\\](models|layers)[/\\]"), _OF_TIMM),
    "x_transformers": (regex(r"(^|[/\\])x_transformers[/\\]"), _OF_X_TRANSFORMERS),
}
"""Where the models of a library run, and its option for fused attention."""
_MATH: Final = regex(r"^aten::_scaled_dot_product_attention_math")
# The fast path of nn.MultiheadAttention in inference, fused unless it returns the weights.
_MODULE_FUNCTION: Final = regex(
    r"(^|[/\\])torch[/\\]nn[/\\]functional\.py\(\d+\): multi_head_attention_forward$"
)
_MODULE_NAME: Final = regex(r"^MultiheadAttention_\d+$")
_MODULE: Final = regex(r"^aten::_native_multi_head_attention$")


_DROPOUT: Final = regex(r"^aten::((native_|_fused_)?dropout|bernoulli)_?$")
_MASKS: Final = regex(r"^aten::(add|sub|masked_fill|where|bitwise_or)_?$")
_CAUSAL: Final = regex(r"^aten::(tril|triu)_?$")
_SCALES: Final = regex(r"^aten::(mul|div)_?$")
_SCALED_PRODUCT: Final = regex(r"^aten::baddbmm_?$")
"""A product that may scale its result."""
_FUSED_SHARE: Final = 0.35
"""Share of a GPU's peak that a fused kernel reaches at least: FlashAttention-2 does 0.35 on an H100
and 0.5 to 0.7 on an A100."""
_MIN_RATE_SHARE: Final = 0.05
"""A CPU's products of one shape tell its rate if they are this share of all FLOPs."""
_NO_DROPOUT: Final = "on a CPU there is no fused implementation of attention with dropout"
_NS: Final = 1e9


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all attention that is not fused, and one for what dropout prevents."""
    for attention in _find_avoidable(ctx):
        yield from _judge(ctx, thresholds, attention)


def _judge(ctx: Context, thresholds: Thresholds, attention: Attentions) -> Iterator[Finding]:
    """Yield a finding for attention that takes enough time."""
    # With the products, to tell whether attention matters at all.
    spent = device_time(ctx, np.append(attention.products, attention.between))
    share = spent.total_ns / (busy_ns(ctx) if ctx.has_device_work else windows_ns(ctx))
    if not len(attention.softmax) or share < thresholds.min_busy_share:
        return
    saving = _measure_range(ctx, attention)
    if not saving.reaches(thresholds.min_saved_share):
        return

    between_ns = ctx.events.dur_ns[attention.between]
    softmax_rows = attention.softmax[attention.of_between]
    locations = find_costliest_lines(ctx, softmax_rows, between_ns)
    unit, describe_time = (
        ("kernels", time_with_busy_share) if ctx.has_device_work else ("operators", time_with_share)
    )
    reason = " because of its dropout" if _have_dropout(ctx, attention).any() else ""
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high" if ctx.has_device_work else "medium",
        message=(
            f"Attention{at_first(locations)} runs as separate {unit}{reason}, "
            f"{times_per_step(ctx, len(attention.softmax))}: its products, softmax and what is "
            f"between take {describe_time(ctx, spent.total_ns)}, "
            f"{time_per_step(ctx, int(between_ns.sum()))} of it without the products."
        ),
        fix=_suggest_fix(ctx, attention),
        locations=locations,
        rows=attention.softmax,
        evidence={
            "busy_share": round(share, 4),
            "products_ns": int(ctx.events.dur_ns[attention.products].sum()),
            "between_ns": int(between_ns.sum()),
        },
        spans=spent.pairs(),
    )


def _find_avoidable(ctx: Context) -> tuple[Attentions, ...]:
    """Find the attention that a fused implementation can compute, on a CPU once without dropout."""
    work = ctx.launches if ctx.has_device_work else find_host_work(ctx.events, ctx.tree)
    attention = find_attentions(ctx.events, ctx.tree, work)
    is_avoidable = in_windows(ctx, attention.softmax)
    if ctx.has_device_work:
        return (attention.select(is_avoidable),)

    # Why else than for dropout a fused one cannot run, `scaled_dot_product_attention` knows.
    is_math = ctx.tree.nearest(rows_named(ctx.events, _MATH, Category.OP)) != NO_ROW
    has_dropout = _have_dropout(ctx, attention)
    without = is_avoidable & ~has_dropout & ~is_math[attention.softmax]
    return attention.select(without), attention.select(is_avoidable & has_dropout)


def _have_dropout(ctx: Context, attention: Attentions) -> Mask:
    """Return which attention has dropout on a CPU, which has no fused one with it."""
    if ctx.has_device_work:
        return np.zeros(len(attention.softmax), dtype=np.bool_)
    is_dropout = rows_named(ctx.events, _DROPOUT, Category.OP)[attention.between]
    return marked(attention.of_between[is_dropout], len(attention.softmax))[:-1]


def _measure_range(ctx: Context, attention: Attentions) -> MeasuredSaving:
    """Return what the steps take less without what is between the products.

    The upper end of its range is with faster products, where that is known.
    """
    between = ((attention.between, 0.0),)
    products = _scale_products(ctx, attention.products)
    changes = [ProgramChange(scaled=between), ProgramChange(scaled=(*between, *products))]
    saving, with_products = measure_savings(ctx, changes, "estimate")
    high_ns = max(saving.cost.high_ns or 0, with_products.cost.high_ns or 0)
    return replace(saving, cost=replace(saving.cost, high_ns=high_ns))


def _scale_products(ctx: Context, rows: Rows) -> tuple[tuple[Rows, float], ...]:
    """Return products that are faster in a fused kernel, with the share of their time there."""
    flops = np.zeros(len(ctx.events))
    flops[ctx.op_work.rows] = ctx.op_work.flops
    ops: Rows | Int32s = rows
    if ctx.has_device_work:
        ops = ctx.launches.op[np.searchsorted(ctx.launches.work, rows)]

    # A product may be several kernels.
    _, product, n_kernels = np.unique(ops, return_inverse=True, return_counts=True)
    product_ns = np.bincount(product, ctx.events.dur_ns[rows], len(n_kernels))[product]
    rates = _find_peak_rates(ctx, rows, ops) if ctx.has_device_work else _find_host_rates(ctx, rows)
    is_known = (rates > 0) & (flops[ops] > 0) & (product_ns > 0)
    rows = rows[is_known]
    # In hundredths, so that the replay has few factors.
    kept = np.ceil(100 * flops[ops][is_known] / (rates * product_ns)[is_known]) / 100
    return tuple((rows[kept == share], share) for share in distinct(kept[kept < 1]).tolist())


def _find_peak_rates(ctx: Context, rows: Rows, ops: Rows | Int32s) -> Float64s:
    """Return FLOPs per nanosecond that a fused kernel reaches on the device of each kernel."""
    kind = np.full(len(ctx.events), UNKNOWN)
    kind[ctx.op_work.rows] = ctx.op_work.kind
    devices = device_of(ctx.events, rows)

    rates = np.zeros(len(rows))
    for place, (row, op) in enumerate(zip(rows.tolist(), ops.tolist(), strict=True)):
        peak = ctx.peak_of(int(devices[place]))
        if peak is None or kind[op] == UNKNOWN:
            continue

        name = ctx.op_work.kinds[kind[op]]
        kernel_name = ctx.events.name_of(row)
        precision: Precision | None = (
            matmul_precision(kernel_name) if name == "float" else PRECISION_OF.get(name)
        )
        rates[place] = _FUSED_SHARE * peak.flops_per_s.get(precision, 0.0) / _NS if precision else 0
    return rates


def _find_host_rates(ctx: Context, rows: Rows) -> Float64s:
    """Return the FLOPs per nanosecond of the program's fastest products, for each of some."""
    work = ctx.op_work
    is_large = work.flops > 0
    if not is_large.any():
        return np.zeros(len(rows))

    shapes = np.stack((ctx.events.input_dims.at(work.rows), ctx.events.name[work.rows], work.kind))
    _, group = np.unique(shapes[:, is_large], axis=1, return_inverse=True)
    group = group.reshape(-1)
    flops = np.bincount(group, work.flops[is_large])
    spent_ns = np.bincount(group, ctx.events.dur_ns[work.rows[is_large]])

    is_telling = flops >= _MIN_RATE_SHARE * flops.sum()
    rate = (flops / np.maximum(spent_ns, 1))[is_telling].max(initial=0.0)
    return np.full(len(rows), rate)


def _suggest_fix(ctx: Context, attention: Attentions) -> str:
    """Suggest the fix for the function that called the operators."""
    softmax = attention.softmax
    if _have_dropout(ctx, attention).all():
        return _suggest_without_dropout(ctx, attention)
    if _are_in_operator(ctx, softmax, _MATH):
        return (
            "`scaled_dot_product_attention` falls back to separate kernels: call it within "
            "`torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)`, which warns why no "
            "fused kernel can run, such as for the dtype, the mask or the size of the heads."
        )
    if _are_in_operator(ctx, softmax, _MODULE) or _are_in_module(ctx, softmax):
        return (
            "Pass `need_weights=False` to the call of the `nn.MultiheadAttention`, which is fused "
            "unless it returns the weights."
        )
    if option := _find_option(ctx, softmax):
        return option

    is_of_program = ctx.source.frame[softmax] != NO_FRAME
    if (is_of_program & ~ctx.source.in_library[softmax]).all():
        return f"Call {_call(ctx, attention)} in place of the products and the softmax."
    return (
        f"Call {_call(ctx, attention)}; load models of Transformers with "
        '`attn_implementation="sdpa"`.'
    )


def _suggest_without_dropout(ctx: Context, attention: Attentions) -> str:
    """Suggest what runs fused attention on a CPU."""
    if are_within(ctx, attention.softmax, _TRANSFORMERS_MODEL):
        return f"Set the dropout of the attention to 0 in the model's configuration: {_NO_DROPOUT}."

    if _are_in_operator(ctx, attention.softmax, _MATH):
        return (
            "Set the dropout of the attention to 0, such as `layer.self_attn.dropout = 0.0` for "
            f"each layer of an `nn.TransformerEncoder`: {_NO_DROPOUT}. Dropout elsewhere may stay."
        )
    return f"Call {_call(ctx, attention)} without dropout: {_NO_DROPOUT}."


def _are_in_operator(ctx: Context, rows: Rows, pattern: re.Pattern[str]) -> bool:
    caller = ctx.tree.nearest(rows_named(ctx.events, pattern, Category.OP))[rows]
    return bool((caller != NO_ROW).all())


def _call(ctx: Context, attention: Attentions) -> str:
    return f"`torch.nn.functional.scaled_dot_product_attention({_list_arguments(ctx, attention)})`"


def _are_in_module(ctx: Context, softmax: Rows) -> bool:
    """Return whether ``nn.MultiheadAttention`` runs the operators, as it does in training."""
    if are_within(ctx, softmax, _MODULE_FUNCTION):
        return True
    # A module of the program may have the same name, and calls the operators itself.
    if not ctx.source.in_library[softmax].all():
        return False
    modules = {ctx.location(row).module or "" for row in softmax.tolist()}
    return all(_MODULE_NAME.search(module) for module in modules)


def _find_option(ctx: Context, softmax: Rows) -> str:
    """Return the option of the library whose model attends; empty if that is not known."""
    for pattern, option in _OPTIONS.values():
        if are_within(ctx, softmax, pattern):
            return option

    # Without calls, of all that the program has imported only one may have the model.
    capture = ctx.trace.capture
    if capture is None or ctx.events.has_python_calls or not ctx.source.in_library[softmax].all():
        return ""
    options = [_OPTIONS[name][1] for name in capture.libraries if name in _OPTIONS]
    return options[0] if len(options) == 1 else ""


def _list_arguments(ctx: Context, attention: Attentions) -> str:
    """Return ``q, k, v, is_causal=True``: the arguments that make it the same attention."""
    between: Rows | Int32s = attention.between
    if ctx.has_device_work:
        between = ctx.launches.op[np.searchsorted(ctx.launches.work, between)]
    is_op = between != NO_ROW
    ops, softmax = between[is_op], attention.softmax[attention.of_between[is_op]]
    before = ops[ctx.events.ts_ns[ops] < ctx.events.ts_ns[softmax]]

    def has(pattern: re.Pattern[str], rows: Rows | Int32s) -> bool:
        return bool(rows_named(ctx.events, pattern, Category.OP)[rows].any())

    arguments = ["q, k, v"]
    # A mask or a bias is added to the scores, or put where the softmax shall be zero.
    if has(_CAUSAL, before):
        arguments.append("is_causal=True")
    elif has(_MASKS, before):
        arguments.append("attn_mask=...")
    if has(_DROPOUT, ops) and ctx.has_device_work:
        arguments.append("dropout_p=...")
    # It scales the scores by itself. A query that is scaled before its product is not, twice.
    if not has(_SCALES, before) and not has(_SCALED_PRODUCT, _list_products(ctx, attention)):
        arguments.append("scale=1.0")
    return ", ".join(arguments)


def _list_products(ctx: Context, attention: Attentions) -> Rows | Int32s:
    """Return the operators of the products, without those of unknown ones."""
    if not ctx.has_device_work:
        return attention.products
    ops = ctx.launches.op[np.searchsorted(ctx.launches.work, attention.products)]
    return np.asarray(ops[ops != NO_ROW])
