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

from profkit.index.compute.peaks import PRECISION_OF, peak_of
from profkit.index.compute.products import LOAD_BYTES, Products, find_misaligned, find_products, pad
from profkit.index.device.matmul_precision import matmul_precision
from profkit.index.device.occupancy import tensor_core_rows
from profkit.index.device.streams import device_of
from profkit.index.distinct import distinct
from profkit.rule import (
    Basis,
    Context,
    Finding,
    Float64s,
    Mask,
    ProgramChange,
    RuleInfo,
    at_first,
    dataclass,
    device_time,
    find_costliest_lines,
    format_count,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_per_step,
)

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


_LIKE: Final = 1.25
"""An aligned product counts as comparable if it is larger, or has more FLOPs per byte, by no more
than this factor: padding changes both a little."""
# Kernels of cuBLAS, CUTLASS and MAGMA for half types that use no tensor cores.
_HALF_ON_CUDA_CORES: Final = regex(
    r"(?<![a-z])(hgemm|fp16_sgemm|simt_h)|magma_sgemmEx_kernel<float, (__nv_bfloat16|__half)\b"
)
_NS: Final = 1e9
_MOST_LEFT: Final = 0.9
"""Most of its time that a product may keep when aligned, since rates differ by a few percent."""
# The profiler writes types as C++ spells them.
_NAMES: Final = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all misaligned products."""
    matmuls = find_products(ctx.events, ctx.launches, ctx.op_work)
    matmuls = matmuls.select(
        in_windows(ctx, matmuls.rows) & (ctx.events.dur_ns[matmuls.kernel] > 0)
    )
    is_odd = find_misaligned(ctx.events, matmuls)
    is_fast = tensor_core_rows(ctx.events, matmuls.kernel)
    is_wide = (matmuls.sizes >= thresholds.min_size_count).all(axis=1)
    odd = matmuls.select(is_odd & is_wide & (is_fast | _left_tensor_cores(ctx, matmuls)))
    if not len(odd.rows):
        return

    kernels = device_time(ctx, ctx.events.kernels)
    share = device_time(ctx, odd.kernel).total_ns / max(1, kernels.total_ns)
    if share < thresholds.min_kernel_share:
        return

    # What the program's own aligned products reach is more certain than what the device could.
    per_ns = _measure_aligned(ctx, odd, matmuls.select(~is_odd & is_fast))
    basis: Basis = "estimate" if per_ns.any() else "upper-bound"
    if basis == "upper-bound":
        per_ns = _estimate_peaks(ctx, odd)
    yield from _build_findings(ctx, thresholds, odd, per_ns, share, basis)


def _left_tensor_cores(ctx: Context, matmuls: Products) -> Mask:
    """Return which products run on CUDA cores, while tensor cores multiply the types elsewhere."""
    events = ctx.events
    names, place = np.unique(events.name[matmuls.kernel], return_inverse=True)
    kernels = [events.names[name] for name in names.tolist()]
    precisions = [matmul_precision(kernel) for kernel in kernels]
    is_float32 = np.array([precision == "float32" for precision in precisions], dtype=np.bool_)
    is_half = np.array(
        [_HALF_ON_CUDA_CORES.search(kernel) is not None for kernel in kernels], dtype=np.bool_
    )
    # Beside TF32 kernels, one in float32 is no setting: the library found no TF32 kernel for it.
    return np.asarray((is_half | (is_float32 & ("tf32" in precisions)))[place])


def _measure_aligned(ctx: Context, odd: Products, aligned: Products) -> Float64s:
    """Measure the fastest comparable aligned shape of each product, in FLOPs per nanosecond.

    Returns:
        Shape of ``odd.rows``; 0 without a comparable shape.
    """
    keys = np.stack((aligned.shapes, ctx.events.name[aligned.rows], aligned.kind))
    _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    # NumPy 2.0 alone returns the inverse with as many dimensions as the keys.
    group = group.reshape(-1)
    spent_ns = np.bincount(group, ctx.events.dur_ns[aligned.kernel])
    per_ns = np.bincount(group, aligned.flops) / np.maximum(spent_ns, 1)
    flops, n_bytes, kind = aligned.flops[first], aligned.n_bytes[first], aligned.kind[first]

    shapes, place = np.unique(
        np.stack((odd.flops, odd.n_bytes, odd.kind)), axis=1, return_inverse=True
    )
    place = place.reshape(-1)
    odd_per_ns = np.zeros(len(odd.rows))
    for number, (odd_flops, odd_bytes, odd_kind) in enumerate(shapes.T.tolist()):
        is_like = (kind == odd_kind) & (flops <= _LIKE * odd_flops)
        is_like &= flops / n_bytes <= _LIKE * odd_flops / odd_bytes
        odd_per_ns[place == number] = per_ns[is_like].max(initial=0.0)
    return odd_per_ns


def _estimate_peaks(ctx: Context, odd: Products) -> Float64s:
    """Estimate FLOPs per nanosecond at the peaks of the device, by the roofline model.

    Returns:
        Shape of ``odd.rows``; 0 on a device with unknown peaks.
    """
    per_ns = np.zeros(len(odd.rows))
    devices = device_of(ctx.events, odd.kernel)
    for ordinal in distinct(devices).tolist():
        device = ctx.trace.devices.get(ordinal)
        peak = None if device is None else peak_of(device.name, device.n_sms)
        if peak is None:
            continue

        for number in distinct(odd.kind).tolist():
            precision = PRECISION_OF.get(odd.kinds[number], "tf32")
            is_kind = (devices == ordinal) & (odd.kind == number)
            # The roof: either the arithmetic or the memory is the limit.
            by_memory = peak.bytes_per_s * odd.flops[is_kind] / odd.n_bytes[is_kind]
            per_ns[is_kind] = np.minimum(peak.flops_per_s.get(precision, 0.0), by_memory) / _NS
    return per_ns


def _build_findings(
    ctx: Context,
    thresholds: Thresholds,
    odd: Products,
    per_ns: Float64s,
    share: float,
    basis: Basis,
) -> Iterator[Finding]:
    """Yield the finding, if alignment saves enough.

    Args:
        per_ns: FLOPs per nanosecond of each product if it were aligned; 0 if not known.
    """
    # Padding adds work, which an aligned product has to make up for.
    padding = np.prod(pad(odd.sizes, odd.element_bytes) / odd.sizes, axis=1)
    now_ns = ctx.events.dur_ns[odd.kernel]
    # Without a known rate the quotient is infinite, and the product is not slow. In hundredths, so
    # that the replay has few factors.
    with np.errstate(divide="ignore"):
        left = np.ceil(100 * odd.flops * padding / per_ns / now_ns) / 100
    is_slow = left <= _MOST_LEFT
    slow, left, now_ns = odd.select(is_slow), left[is_slow], now_ns[is_slow]

    factors = distinct(left).tolist()
    change = ProgramChange(scaled=tuple((slow.kernel[left == share], share) for share in factors))
    saving = measure_saving(ctx, change, basis)
    if not saving.reaches(thresholds.min_saved_share):
        return

    gain_ns = np.rint(now_ns * (1 - left)).astype(np.int64)
    locations = find_costliest_lines(ctx, slow.rows, gain_ns)
    is_warning = basis == "estimate" and saving.severity(thresholds.warning_share) == "warning"
    spent = device_time(ctx, slow.kernel)
    flops = float(slow.flops.sum())
    reference = "aligned ones of comparable sizes" if basis == "estimate" else "the device's peaks"
    example = int(np.argmax(np.bincount(slow.shapes, gain_ns)[slow.shapes]))

    yield saving.finding(
        INFO,
        severity="warning" if is_warning else "note",
        confidence="medium",
        message=(
            f"Matrix products{at_first(locations)} with sizes that are no "
            f"multiple of {LOAD_BYTES} bytes take {time_per_step(ctx, spent.total_ns)}, at "
            f"{flops / now_ns.sum() / 1e3:.3g} TFLOP/s where {reference} allow "
            f"{flops / (now_ns * left).sum() / 1e3:.3g}. One multiplies "
            f"{_describe_shape(slow, example)}."
        ),
        fix=_suggest_fix(slow, example),
        locations=locations,
        rows=slow.kernel,
        evidence={"kernel_share": round(share, 4)},
        spans=spent.pairs(),
    )


def _describe_shape(slow: Products, place: int) -> str:
    """``2,048 x 110 with 110 x 18,030 in float32``."""
    m, k, n = map(format_count, slow.sizes[place].tolist())
    kind = slow.kinds[slow.kind[place]]
    return f"{m} x {k} with {k} x {n} in {_NAMES.get(kind, kind)}"


def _suggest_fix(slow: Products, place: int) -> str:
    sizes, element_bytes = slow.sizes[[place]], slow.element_bytes[[place]]
    rounded = pad(sizes, element_bytes)[0].tolist()
    changed = [
        f"{format_count(old)} to {format_count(new)}"
        for old, new in dict(zip(sizes[0].tolist(), rounded, strict=True)).items()
        if old != new
    ]
    return (
        f"Pad sizes to multiples of {LOAD_BYTES // int(element_bytes[0])} elements, such as "
        f"{' and '.join(changed)}."
    )
