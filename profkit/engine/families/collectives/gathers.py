"""All-gathers of parameters that start only when the module that needs them is reached."""

from dataclasses import replace
from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.collectives.gradients import are_started_within
from profkit.engine.families.collectives.waits import CollectiveWaits
from profkit.engine.windows import windows_ns
from profkit.index.device.streams import device_of
from profkit.index.distinct import distinct
from profkit.index.intervals import of_pairs, subtract, take_from_start
from profkit.index.runtime_calls import rows_named
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW, RECORD_FUNCTIONS, Category, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import BACKWARD, GATHERED_MODULE, PARAMETER_GATHER, ZERO_3

Sharding = Literal["fsdp1", "fsdp2", "zero"]

MIN_HIDDEN_SHARE: Final = 0.01
"""The share of the steps that could overlap from which a change is worth the edit."""
_ROUNDING_NS: Final = 1_000
"""Producers round times to microseconds."""
_N_FACTORS: Final = 64
"""Factors are rounded to such parts, since each takes a pass over the graph of a replay."""


@dataclass(frozen=True)
class LateGathers:
    """All-gathers of parameters that were issued one module too late.

    Attributes:
        sharding: What gathers them.
        place: Indices into the collectives, ascending. Shape ``(k,)``.
        hidden_ns: How much of the waiting for each would overlap what runs before it, if it were
            issued one module earlier. Shape ``(k,)``.
        in_backward: Which are of a backward pass. Shape ``(k,)``.
        modules: The modules whose parameters they gather, where names were recorded.
    """

    sharding: Sharding
    place: Rows
    hidden_ns: Int64s
    in_backward: Mask
    modules: tuple[str, ...]


def find_late_gathers(ctx: Context, waits: CollectiveWaits) -> LateGathers | None:
    """Find the all-gathers that would overlap if they were issued one module earlier.

    Computation waits for them and starts when they end, and no other work that runs meanwhile was
    launched after them: they were needed at once. Issued with the one before, such an all-gather
    would begin when the collectives before it have ended; up to so much of it overlaps the work
    that runs until it begins now. The first one of a pass has none before it.

    Returns:
        None where they could overlap for less than :data:`MIN_HIDDEN_SHARE` of the steps.
    """
    is_gather, above = _find_parameter_gathers(ctx, waits)
    gathers = np.flatnonzero(is_gather)
    if not len(gathers):
        return None

    events, starter = ctx.events, waits.starter[gathers]
    rows = waits.rows[gathers]

    in_backward = are_started_within(ctx, waits, BACKWARD)[gathers]
    turns = np.stack([ctx.step_of(starter), in_backward])

    # The first gather of a pass has no other one to be issued with.
    is_first = np.append(True, (np.diff(turns, axis=1) != 0).any(axis=0)) | (gathers == 0)

    # The device can begin to gather when all collectives before have ended.
    free_ns = np.maximum.accumulate(events.end_ns[waits.rows])[gathers - 1]
    gap_ns = np.maximum(0, events.ts_ns[rows] - free_ns)
    is_late = ~is_first & _is_needed_next(ctx, waits, gathers)
    hidden_ns = np.where(is_late, np.minimum(waits.share_ns[gathers], gap_ns), 0)

    if hidden_ns.sum() < MIN_HIDDEN_SHARE * windows_ns(ctx):
        return None

    late_places = np.flatnonzero(hidden_ns)
    names = [events.name_of(row) for row in above[gathers[late_places]].tolist() if row != NO_ROW]
    matches = (GATHERED_MODULE.match(name) for name in names)
    modules = (match["own"] or match["other"] for match in matches if match)
    sharding: Sharding = "zero"
    if names:
        sharding = "fsdp2" if any(name.startswith("FSDP::") for name in names) else "fsdp1"
    return LateGathers(
        sharding,
        gathers[late_places],
        hidden_ns[late_places],
        in_backward[late_places],
        tuple(dict.fromkeys(modules)),
    )


def _find_parameter_gathers(ctx: Context, waits: CollectiveWaits) -> tuple[Mask, Int32s]:
    """Return which collectives gather parameters, and their FSDP event, or :data:`NO_ROW`.

    Returns:
        Shape of ``waits.rows`` each.
    """
    events = ctx.events
    is_gather = waits.are_of_kinds({"all-gather"}) & (waits.starter != NO_ROW)
    above = np.full(len(waits.rows), NO_ROW, dtype=np.int32)
    if not is_gather.any():
        return is_gather, above

    named = rows_named(events, PARAMETER_GATHER, *RECORD_FUNCTIONS)
    above[is_gather] = ctx.tree.nearest(named)[waits.starter[is_gather]]
    # ZeRO 3 does not name its gathers: all of them count if nothing else is named.
    if named.any() or not rows_named(events, ZERO_3, *RECORD_FUNCTIONS).any():
        is_gather &= above != NO_ROW

    return is_gather, above


def _is_needed_next(ctx: Context, waits: CollectiveWaits, gathers: Rows) -> Mask:
    """Return whether the next kernel on the device begins only when a collective has ended.

    Args:
        gathers: Indices into the collectives. Shape ``(k,)``, also of the result.
    """
    events, launches = ctx.events, ctx.launches
    # Only computation on the same device waits for the gather.
    is_kernel = (events.category[launches.work] == Category.KERNEL) & (launches.launch != NO_ROW)
    is_kernel &= ~ctx.is_communication[launches.work]
    is_kernel &= device_of(events, launches.work) == waits.device

    kernels = launches.work[is_kernel]
    launched_ns = events.ts_ns[launches.launch[is_kernel]]
    order = np.argsort(launched_ns, kind="stable")

    issued_ns = events.end_ns[waits.starter[gathers]]
    place = np.searchsorted(launched_ns[order], issued_ns)
    has_next = place < len(order)
    if not has_next.any():
        return np.asarray(has_next)

    following = kernels[order[np.minimum(place, len(order) - 1)]]
    ends_ns = events.end_ns[waits.rows[gathers]]
    return np.asarray(has_next & (events.ts_ns[following] >= ends_ns - _ROUNDING_NS))


def earlier(ctx: Context, waits: CollectiveWaits, gathers: LateGathers) -> ProgramChange:
    """Build the change to a program that issues the gathers one module earlier."""
    return _shortened(ctx, waits.rows[gathers.place], gathers.hidden_ns)


def without_overlapping(
    ctx: Context, waits: CollectiveWaits, gathers: LateGathers
) -> tuple[CollectiveWaits, ProgramChange]:
    """Return the other waits, and the change by which the gathers take none of them."""
    events, rows = ctx.events, waits.rows[gathers.place]
    ends = np.maximum.accumulate(events.end_ns[rows])
    begins = np.maximum(events.ts_ns[rows], np.append(0, ends[:-1]))
    taken = take_from_start(waits.waited, begins, np.maximum(begins, ends), gathers.hidden_ns)

    share_ns = waits.share_ns.copy()
    share_ns[gathers.place] -= gathers.hidden_ns
    other_waits = replace(waits, waited=subtract(waits.waited, of_pairs(taken)), share_ns=share_ns)
    return other_waits, _shortened(ctx, rows, events.dur_ns[rows] - gathers.hidden_ns)


def _shortened(ctx: Context, rows: Rows, less_ns: Int64s) -> ProgramChange:
    """Build the change to device work that takes so much less. Shape ``(k,)`` each."""
    parts = np.round(_N_FACTORS * (1 - less_ns / np.maximum(ctx.events.dur_ns[rows], 1)))
    return ProgramChange(
        scaled=tuple(
            (rows[parts == part].astype(np.intp), part / _N_FACTORS)
            for part in distinct(parts).tolist()
        )
    )
