"""All-reduces of gradients that are many and small: buckets of one size would be fewer."""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.collectives.gradients import (
    reduced_after_backward,
    reduced_by_hooks,
    reduced_one_by_one,
)
from profkit.engine.families.collectives.waits import CollectiveWaits
from profkit.engine.windows import in_windows
from profkit.index.compute.inputs import parse_inputs
from profkit.index.ranks.delays import ELEMENT_BYTES
from profkit.model.events import MISSING, NO_ROW, Int32s, Int64s, Rows
from profkit.units import format_bytes, format_ns

LARGER_BUCKETS: Final = "Leave `bucket_cap_mb` of `DistributedDataParallel` at 25 MiB, or raise it."
_BUCKET_BYTES: Final = 25 << 20
"""The default of ``bucket_cap_mb``."""
_GRADIENT_BYTES: Final = 4


@dataclass(frozen=True)
class BucketThresholds:
    """When all-reduces are too many and too small.

    Attributes:
        min_calls_count: Minimum number per step: a few more than needed cost nothing.
        min_excess_count: Minimum ratio of their number to the number of buckets of 25 MiB.
        max_small_bytes: Maximum of the median size: below 1 MiB, the size of the first bucket of
            DDP, latency is most of the time.
        max_small_ns: Maximum of the median time where sizes are unknown, about the latency of NCCL
            between GPUs of several hosts.
        warning_share: Share of the steps that a fix can save from which it is a warning: from one
            percent on, a change is worth the edit.
    """

    min_calls_count: int = 8
    min_excess_count: int = 3
    max_small_bytes: int = 1 << 20
    max_small_ns: int = 50_000
    warning_share: float = 0.01


@dataclass(frozen=True)
class SmallReductions:
    """All-reduces of gradients that fewer could replace.

    Attributes:
        places: The all-reduces, as places in the collectives that they are of.
        kept_share: Share of their time that as many as are needed would take.
        typical: Their typical size or time, as a clause.
    """

    places: Rows
    kept_share: float
    typical: str


def find_small_reductions(
    ctx: Context, waits: CollectiveWaits, thresholds: BucketThresholds
) -> SmallReductions | None:
    """Return the all-reduces of gradients that fewer could replace; None if they are few or large.

    Args:
        waits: The collectives of a device or of host threads.
    """
    if not len(ctx.steps):
        return None
    is_of_gradients = reduced_by_hooks(ctx, waits)
    # A thread of the host runs one after the other while the loop waits: exposed-communication.
    if waits.device is not None:
        is_of_gradients |= reduced_after_backward(ctx, waits)
    is_of_gradients |= reduced_one_by_one(ctx, waits)
    places = np.flatnonzero(is_of_gradients)
    places = places[in_windows(ctx, waits.starter[places].astype(np.intp))]
    n_per_step = len(places) / len(ctx.steps)
    if n_per_step <= thresholds.min_calls_count:
        return None

    # Without sizes, short times stand for small reductions, and one bucket may be enough.
    n_bytes = _find_sizes(ctx, waits, places)
    dur_ns = ctx.events.dur_ns[waits.rows[places]]
    if n_bytes is None:
        needed, is_small = 1, np.median(dur_ns) <= thresholds.max_small_ns
    else:
        # DDP's first bucket is smaller, so that it is reduced early: one more than the bytes fill.
        needed = 1 + -(-int(n_bytes.sum()) // len(ctx.steps) // _BUCKET_BYTES)
        is_small = np.median(n_bytes) <= thresholds.max_small_bytes

    if not is_small or n_per_step < thresholds.min_excess_count * needed:
        return None
    typical = (
        f"most of them take less than {format_ns(float(np.median(dur_ns)))}"
        if n_bytes is None
        else f"most of them are at most {format_bytes(int(np.median(n_bytes)))}"
    )
    return SmallReductions(places, needed / n_per_step, typical)


def _find_sizes(ctx: Context, waits: CollectiveWaits, places: Rows) -> Int64s | None:
    """Find the bytes of each all-reduce, or None if not recorded. Shape of ``places``."""
    events = ctx.events
    rows = waits.rows[places]
    count, kind = events.n_in.at(rows), events.element_type.at(rows)
    if (count == MISSING).any() or (kind == MISSING).any():
        n_bytes = _find_input_bytes(ctx, waits.starter[places])
        return n_bytes if n_bytes.all() else None
    width = [ELEMENT_BYTES.get(events.names[number], 0) for number in kind.tolist()]
    return np.asarray(count * np.array(width))


def _find_input_bytes(ctx: Context, rows: Int32s) -> Int64s:
    """Find the bytes of operators' tensors by their recorded shapes, or 0. Shape of ``rows``."""
    events = ctx.events
    texts = np.column_stack((events.input_dims.at(rows), events.input_types.at(rows)))
    texts[rows == NO_ROW] = MISSING
    different, number = np.unique(texts, axis=0, return_inverse=True)
    n_bytes = [_count_bytes(events.names, *pair) for pair in different.tolist()]
    return np.asarray(np.array(n_bytes)[number.ravel()])


def _count_bytes(names: Sequence[str], dims: int, types: int) -> int:
    """Return the bytes of the tensors with some shapes and types, as numbers of their names."""
    if MISSING in {dims, types}:
        return 0
    inputs = parse_inputs(names[dims], names[types], "")
    tensors = () if inputs is None else inputs.tensors
    # Of a list of tensors torch may not record the type: gradients have no more than this.
    return sum(prod(shape) * (width or _GRADIENT_BYTES) for shape, width in tensors)
