"""FLOP utilization of the steps, and model FLOP utilization with the user's token count."""

from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.per_step import per_step
from profkit.engine.figures.throughput import TimedWork, product_precision
from profkit.engine.windows import in_windows, windows_ns
from profkit.index.compute.categories import PRODUCTS
from profkit.index.compute.formulas import is_product
from profkit.index.compute.peaks import Peak, Precision
from profkit.index.distinct import marked, numbered
from profkit.index.host.source import backward_rows
from profkit.index.runtime_calls import map_names, rows_named
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Category, Mask, Rows
from profkit.model.torch_names import BACKWARD
from profkit.model.work_summary import FlopSummary, PeakFlops

_NS: Final = 1e9
_MAX_UNKNOWN_SHARE: Final = 0.01
"""FLOPs in an unknown precision that a utilization may leave out."""
_TRAINING_FLOPS: Final = 6
_INFERENCE_FLOPS: Final = 2
"""Per parameter and token: a product and a sum forward, and twice as many backward.

Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), 2.1.
"""


def summarize_flops(ctx: Context, work: TimedWork) -> FlopSummary | None:
    """Sum the FLOPs of the steps; None if neither shapes nor tokens are known."""
    products = np.flatnonzero(map_names(ctx.events, work.rows, is_product, np.bool_))
    products = products[in_windows(ctx, work.rows[products])]

    time_ns, flops = windows_ns(ctx), int(work.flops[products].sum())
    model_flops = _model_flops(ctx)
    if not len(work.rows) and model_flops is None:
        return None

    peaks = _peaks(ctx)
    # Peaks are shown only if they are the same on all devices.
    peak_of_all = peaks[0] if peaks and all(peak == peaks[0] for peak in peaks) else Peak({}, None)
    by_precision = _by_precision(ctx, work, products)
    main = max(by_precision, key=lambda precision: by_precision[precision], default=None)

    return FlopSummary(
        flops=flops,
        time_ns=time_ns,
        per_step_flops=per_step(ctx, flops),
        precision=main,
        utilization_share=_utilization(by_precision, time_ns, peaks) if flops else None,
        known_share=_known_share(ctx, work) if flops else None,
        model_flops_per_step=model_flops,
        model_utilization_share=_model_utilization(ctx, model_flops, main, time_ns, peaks),
        unknown_devices=_unknown_devices(ctx),
        peaks=tuple(
            PeakFlops(name, per_s)
            for name, per_s in sorted(peak_of_all.flops_per_s.items(), key=lambda pair: pair[1])
        ),
        peak_bytes_per_s=peak_of_all.bytes_per_s,
    )


def _peaks(ctx: Context) -> list[Peak]:
    """Return the peaks of all devices that worked, or of the CPU; empty if one is unknown."""
    devices = [device.device for device in ctx.devices] if ctx.has_device_work else [None]
    peaks = [ctx.peak_of(device) for device in devices]
    return [peak for peak in peaks if peak is not None] if None not in peaks else []


def _unknown_devices(ctx: Context) -> tuple[str, ...]:
    """Return the names of devices that worked and whose peaks are not known."""
    unknown = {device.device for device in ctx.devices if ctx.peak_of(device.device) is None}
    described = ctx.trace.devices
    names = (
        device.name for number, device in described.items() if number in unknown and device.name
    )
    return tuple(dict.fromkeys(names))


def _by_precision(ctx: Context, work: TimedWork, places: Rows) -> dict[Precision | None, int]:
    """Sum the FLOPs of some products by precision; None is an unknown one."""
    width = len(ctx.events.names)
    kernel = ctx.events.name[work.main_kernel[places]].astype(np.int64)
    pairs, place = numbered((work.kind[places] + 1) * width + kernel)
    flops = sum_by_key(len(pairs), place, work.flops[places])

    flops_of: dict[Precision | None, int] = {}
    for pair, n_flops in zip(pairs.tolist(), flops.tolist(), strict=True):
        kind, name = divmod(pair, width)
        precision = product_precision(ctx, kind - 1, name)
        flops_of[precision] = flops_of.get(precision, 0) + n_flops
    return flops_of


def _utilization(
    by_precision: dict[Precision | None, int], time_ns: int, peaks: list[Peak]
) -> float | None:
    """Return the least time of the FLOPs at the peaks of their precision, as a share of the steps.

    Of several devices it is the mean. None if a peak is not known.
    """
    unknown_flops = by_precision.get(None, 0)
    if not peaks or unknown_flops > _MAX_UNKNOWN_SHARE * sum(by_precision.values()):
        return None

    least_s = 0.0
    for kind, flops in by_precision.items():
        per_s = [peak.flops_per_s[kind] for peak in peaks if kind and kind in peak.flops_per_s]
        if kind is not None and len(per_s) < len(peaks):
            return None
        # Devices work at the same time: their peaks add up.
        least_s += flops / sum(per_s) if per_s else 0.0
    return least_s / (time_ns / _NS)


def _known_share(ctx: Context, work: TimedWork) -> float | None:
    """Return the share of the time of matrix products whose FLOPs are known."""
    events = ctx.events
    category = Category.KERNEL if ctx.has_device_work else Category.OP
    is_product_work: Mask = np.isin(ctx.work_categories, PRODUCTS) & (events.category == category)
    spent_ns = events.dur_ns if ctx.has_device_work else ctx.op_self_ns
    all_ns = int(spent_ns[is_product_work].sum())
    if not all_ns:
        return None

    is_counted: Mask = ctx.nearest(work.rows) != NO_ROW
    if ctx.has_device_work:
        is_counted = marked(ctx.launched_by(work.rows)[0], len(events))[:-1]
    return int(spent_ns[is_product_work & is_counted].sum()) / all_ns


def _model_flops(ctx: Context) -> int | None:
    """Return the FLOPs of a step by its tokens and parameters, without recomputation."""
    if ctx.tokens_per_step is None or ctx.parameters is None:
        return None
    trains = backward_rows(ctx.events).any() or rows_named(ctx.events, BACKWARD, Category.OP).any()
    per_token = _TRAINING_FLOPS if trains else _INFERENCE_FLOPS
    return per_token * ctx.parameters * ctx.tokens_per_step


def _model_utilization(
    ctx: Context, flops: int | None, kind: Precision | None, time_ns: int, peaks: list[Peak]
) -> float | None:
    per_s = sum(peak.flops_per_s.get(kind, 0.0) for peak in peaks) if kind else 0.0
    if flops is None or not per_s or not len(ctx.steps):
        return None
    return flops * len(ctx.steps) / (time_ns / _NS) / per_s
