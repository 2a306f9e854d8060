"""KER009 misaligned-matmul: matrix products whose rows do not begin at multiples of 16 bytes.

What it finds:
    Matrix products for tensor cores with a size that is no multiple of 16 bytes: of 8 elements in
    half or bfloat16, of 4 in float32 (TF32). Products whose kernel needs or uses whole loads
    anyway do not count, nor do products with vectors or very narrow matrices.

Why it matters:
    A thread loads 16 bytes at once if they begin at a multiple of 16. Rows of another length are
    loaded in pieces of 4 or 2 bytes, for which libraries have slower kernels, some of them without
    tensor cores. The cost is an estimate: what the steps take less in a replay of the recording in
    which these products, padded, are as fast as the fastest aligned ones of the recording that are
    neither larger nor have more FLOPs per byte. Products for which there are none are not in the
    figure. If there are none at all, it is an upper bound by the device's peaks, and a note.

How to fix it:
    Round sizes up: vocabularies, classes, hidden sizes, numbers of features. ``nn.Embedding`` and
    ``nn.Linear`` may have rows that nothing uses; inputs are padded with zeros. On an A100 and
    later, multiples of 128 bytes are better still.

Example:
    ::

        head = nn.Linear(768, 50257, bias=False)

Use instead:
    ::

        head = nn.Linear(768, 50304, bias=False)  # scores of 50257 tokens, and 47 that are unused

Reads:
    Operators with shapes and types of their inputs, their kernels (``name``, ``dur_ns`` in
    nanoseconds), peaks of known devices, source lines.

When to ignore this:
    The sizes are those of the data, and padding copies a large tensor for a small product. The
    recording has no strides: where a factor is transposed, another size than k and n may be the
    length of its rows.

Source:
    "Tensor Core Requirements" and "Dimension Quantization Effects" in NVIDIA's "Matrix
    Multiplication Background User's Guide"; ``cutlass/library`` (``align`` in the names of its
    kernels); "cuTensorMapEncodeTiled" in the CUDA Driver API reference (strides of 16 bytes).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import device_time, event_ids, in_windows, windows_ns
from profkit.engine.wording import at, known_locations, time_per_step
from profkit.index.compute.peaks import PRECISION_OF, peak_of
from profkit.index.compute.products import LOAD_BYTES, Products, find_misaligned, find_products, pad
from profkit.index.device.matmul_precision import matmul_precision
from profkit.index.device.occupancy import tensor_core_rows
from profkit.index.device.streams import device_of
from profkit.index.distinct import distinct
from profkit.model.change import ProgramChange
from profkit.model.events import Category, Float64s, Mask
from profkit.model.finding import Basis, Finding
from profkit.patterns import regex
from profkit.units import format_count

INFO = RuleInfo(
    id="KER009",
    name="misaligned-matmul",
    title="Matrix products with sizes that are no multiple of 16 bytes",
    severity="warning",
    needs=(needs.SHAPES, needs.DEVICE_WORK, needs.CUDA),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When misaligned products are a finding.

    Attributes:
        min_kernel_share: Minimum share of the kernel time that they take. Below two percent not
            even half of it matters.
        min_size_count: Minimum of m, k and n: with vectors and very narrow matrices a product is
            limited by bandwidth, and padding adds too much.
        min_saved_share: Minimum share of the steps that alignment saves; below a thousandth no step
            gets measurably shorter.
        warning_share: Share from which it is a warning.
    """

    min_kernel_share: float = 0.02
    min_size_count: int = 8
    min_saved_share: float = 0.001
    warning_share: float = 0.02


_MAX_LINES: Final = 3
_LIKE: Final = 1.25
"""An aligned product counts as comparable if it is larger, or has more FLOPs per byte, by no more
than this factor: padding changes both a little."""
_HALF_ON_CUDA_CORES: Final = regex(
    r"(?<![a-z])(hgemm|fp16_sgemm|simt_h)|magma_sgemmEx_kernel<float, (__nv_bfloat16|__half)\b"
)
_NS: Final = 1e9
_MOST_LEFT: Final = 0.9
"""Rates of products of one shape differ by a few percent."""
_NAMES: Final = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all misaligned products."""
    every = find_products(ctx.events, ctx.launches, ctx.op_work)
    every = every.select(in_windows(ctx, every.rows) & (ctx.events.dur_ns[every.kernel] > 0))
    is_odd, is_fast = find_misaligned(ctx.events, every), tensor_core_rows(ctx.events, every.kernel)
    is_wide = (every.sizes >= thresholds.min_size_count).all(axis=1)
    odd = every.select(is_odd & is_wide & (is_fast | _left_tensor_cores(ctx, every)))
    if not len(odd.rows):
        return
    kernels = device_time(ctx, ctx.events.rows_of(Category.KERNEL))
    share = device_time(ctx, odd.kernel).total_ns / max(1, kernels.total_ns)
    if share < thresholds.min_kernel_share:
        return
    per_ns = _rates_of_aligned(ctx, odd, every.select(~is_odd & is_fast))
    if per_ns.any():
        yield from _finding(ctx, thresholds, odd, per_ns, share, "estimate")
    else:
        yield from _finding(ctx, thresholds, odd, _peaks(ctx, odd), share, "upper-bound")


def _left_tensor_cores(ctx: Context, every: Products) -> Mask:
    """Which products run on CUDA cores, where tensor cores multiply the same types elsewhere."""
    events = ctx.events
    names, place = np.unique(events.name[every.kernel], return_inverse=True)
    precisions = [matmul_precision(events.names[name]) for name in names.tolist()]
    halves = [_HALF_ON_CUDA_CORES.search(events.names[name]) for name in names.tolist()]
    in_float32 = np.array([each == "float32" for each in precisions], dtype=np.bool_)[place]
    in_half = np.array([each is not None for each in halves], dtype=np.bool_)[place]
    return np.asarray(in_half | (in_float32 & ("tf32" in precisions)))


def _rates_of_aligned(ctx: Context, odd: Products, aligned: Products) -> Float64s:
    """FLOPs per nanosecond of the fastest comparable shape of aligned products; 0 without one.

    Shape of ``odd.rows``.
    """
    keys = np.stack((aligned.shapes, ctx.events.name[aligned.rows], aligned.kind))
    _, first, of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of = of.reshape(-1)
    spent_ns = np.bincount(of, ctx.events.dur_ns[aligned.kernel])
    per_ns = np.bincount(of, aligned.flops) / np.maximum(spent_ns, 1)
    flops, n_bytes, kind = aligned.flops[first], aligned.n_bytes[first], aligned.kind[first]
    found = np.zeros(len(odd.rows))
    shapes, place = np.unique(
        np.stack((odd.flops, odd.n_bytes, odd.kind)), axis=1, return_inverse=True
    )
    for number, (own_flops, own_bytes, own_kind) in enumerate(shapes.T.tolist()):
        like = (kind == own_kind) & (flops <= _LIKE * own_flops)
        like &= flops / n_bytes <= _LIKE * own_flops / own_bytes
        found[place.reshape(-1) == number] = per_ns[like].max(initial=0.0)
    return found


def _peaks(ctx: Context, odd: Products) -> Float64s:
    """FLOPs per nanosecond at the peaks of the device; 0 where it is not known.

    Shape of ``odd.rows``.
    """
    found = np.zeros(len(odd.rows))
    devices = device_of(ctx.events, odd.kernel)
    for ordinal in distinct(devices).tolist():
        device = ctx.trace.devices.get(ordinal)
        peak = None if device is None else peak_of(device.name, device.n_sms)
        if peak is None:
            continue
        for number in distinct(odd.kind).tolist():
            precision = PRECISION_OF.get(odd.kinds[number], "tf32")
            own = (devices == ordinal) & (odd.kind == number)
            by_memory = peak.bytes_per_s * odd.flops[own] / odd.n_bytes[own]
            found[own] = np.minimum(peak.flops_per_s.get(precision, 0.0), by_memory) / _NS
    return found


def _finding(
    ctx: Context,
    thresholds: Thresholds,
    odd: Products,
    per_ns: Float64s,
    share: float,
    basis: Basis,
) -> Iterator[Finding]:
    """The finding, if alignment saves enough.

    Args:
        per_ns: FLOPs per nanosecond of each product if it were aligned; 0 if not known.
    """
    unit = np.prod(pad(odd.sizes, odd.element_bytes) / odd.sizes, axis=1)
    now_ns = ctx.events.dur_ns[odd.kernel]
    with np.errstate(divide="ignore"):
        left = np.ceil(100 * odd.flops * unit / per_ns / now_ns) / 100
    slow = left <= _MOST_LEFT
    found, left, now_ns = odd.select(slow), left[slow], now_ns[slow]
    factors = distinct(left).tolist()
    change = ProgramChange(scaled=tuple((found.kernel[left == each], each) for each in factors))
    cost, total_ns = ctx.time_cost(change, basis), windows_ns(ctx)
    saved_ns = cost.ns or 0
    if saved_ns < max(1, thresholds.min_saved_share * total_ns):
        return
    gain_ns = np.rint(now_ns * (1 - left)).astype(np.int64)
    locations = known_locations(*ctx.costliest_lines(found.rows, _MAX_LINES, gain_ns))
    is_warning = basis == "estimate" and saved_ns >= thresholds.warning_share * total_ns
    spent = device_time(ctx, found.kernel)
    flops = float(found.flops.sum())
    than = "aligned ones of comparable sizes" if basis == "estimate" else "the device's peaks"
    example = int(np.argmax(np.bincount(found.shapes, gain_ns)[found.shapes]))
    yield INFO.finding(
        severity="warning" if is_warning else "note",
        confidence="medium",
        message=(
            f"Matrix products{at(locations[0]) if locations else ''} with sizes that are no "
            f"multiple of {LOAD_BYTES} bytes take {time_per_step(ctx, spent.total_ns)}, at "
            f"{flops / now_ns.sum() / 1e3:.3g} TFLOP/s where {than} allow "
            f"{flops / (now_ns * left).sum() / 1e3:.3g}. One multiplies {_shape(found, example)}."
        ),
        fix=_fix(found, example),
        locations=locations,
        n=len(found.rows),
        cost=cost,
        evidence={"kernel_share": round(share, 4), "events": event_ids(ctx, found.kernel)},
        spans=spent.pairs(),
        change=change,
    )


def _shape(found: Products, place: int) -> str:
    """``2,048 x 110 with 110 x 18,030 in float32``."""
    m, k, n = map(format_count, found.sizes[place].tolist())
    kind = found.kinds[found.kind[place]]
    return f"{m} x {k} with {k} x {n} in {_NAMES.get(kind, kind)}"


def _fix(found: Products, place: int) -> str:
    here = slice(place, place + 1)
    element_bytes = found.element_bytes[here]
    rounded = pad(found.sizes[here], element_bytes)[0].tolist()
    changed = [
        f"{format_count(old)} to {format_count(new)}"
        for old, new in dict(zip(found.sizes[place].tolist(), rounded, strict=True)).items()
        if old != new
    ]
    return (
        f"Pad sizes to multiples of {LOAD_BYTES // int(element_bytes[0])} elements, such as "
        f"{' and '.join(changed)}."
    )
