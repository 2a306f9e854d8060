"""How long ranks wait in collectives, who was last, and why."""

from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.columns import build_empty
from profkit.index.ranks.matching import SYNCHRONIZING, Matches
from profkit.model.events import MISSING, Float64s, Int64s, Mask, Rows
from profkit.model.job import Lateness

_MOST: Final = 0.5
ELEMENT_BYTES: Final = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4,
    "UInt32": 4, "UInt64": 8, "Half": 2, "BFloat16": 2, "Short": 2, "UInt16": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes of an element by the name that PyTorch writes for its type (``c10/core/ScalarType.h``)."""


@dataclass(frozen=True)
class Delays:
    """Waiting and transfer of matched collectives. Times in nanoseconds on the common clock.

    Attributes:
        wait_ns: How long each call waits for the last rank to start. Shape of ``matches.members``.
        transfer_ns: From the start on the last rank to the end on all. Shape ``(m,)``.
        last: The call of the rank that started last. Shape ``(m,)``.
        delay_ns: How much later it started than the median of the other ranks. Shape ``(m,)``.
        is_certain: Whether the delay exceeds the error of the clocks. Shape ``(m,)``.
        why: Why it was late, as in :class:`~profkit.model.job.LastRank`; ``m`` of them.
        skew_ns: From the start on the first rank to the start on the last. Shape ``(m,)``.
        message_bytes: Size of the message as nccl-tests defines it, NaN where it is not recorded:
            of an all-gather the output, of all other kinds the input. Shape ``(m,)``.
        bus_factor: By which share of it each rank's link has to move at least, the same for all
            algorithms. Shape ``(m,)``.
    """

    wait_ns: Int64s
    transfer_ns: Int64s
    last: Rows
    delay_ns: Int64s
    is_certain: Mask
    why: tuple[Lateness, ...]
    skew_ns: Int64s
    message_bytes: Float64s
    bus_factor: Float64s

    @property
    def bus_bytes(self) -> Float64s:
        """Return what each rank's link has to move at least, NaN without sizes. Shape ``(m,)``.

        Divided by the transfer it is the bus bandwidth of nccl-tests (doc/PERFORMANCE.md).
        """
        return self.message_bytes * self.bus_factor


def find_delays(matches: Matches, computed_ns: Int64s | None = None) -> Delays:
    """Split the time of matched collectives into waiting and transfer.

    Args:
        computed_ns: How long a rank's devices, or without devices its operators, had computed
            before each call, from any moment on; None where that is not known. Shape ``(n,)``.
    """
    calls, rows, first = matches.calls, matches.members, matches.first
    if not len(first):
        return build_empty(Delays)

    wait, transfer, last, delay = _measure_lateness(matches)
    clock = calls.clock[calls.member[rows]]
    error = np.maximum.reduceat(matches.clocks.error_ns[clock], first)
    # Calls on one clock have no error of the clocks.
    is_one_clock = np.maximum.reduceat(clock, first) == np.minimum.reduceat(clock, first)

    starts = matches.start_ns[rows]
    kind = np.array(calls.kinds)[calls.kind[last]]
    return Delays(
        wait_ns=wait,
        transfer_ns=transfer,
        last=last,
        delay_ns=delay,
        is_certain=delay > np.where(is_one_clock, 0, error),
        why=_explain(matches, last, delay, _measure_extra_compute(matches, last, computed_ns)),
        skew_ns=np.maximum.reduceat(starts, first) - np.minimum.reduceat(starts, first),
        message_bytes=_compute_message_bytes(matches, last, kind == "all-gather"),
        bus_factor=_compute_bus_factors(matches, last, kind),
    )


def _measure_lateness(matches: Matches) -> tuple[Int64s, Int64s, Rows, Int64s]:
    """Return ``wait_ns``, ``transfer_ns``, ``last`` and ``delay_ns`` of :class:`Delays`."""
    rows, first, sizes = matches.members, matches.first, matches.sizes
    starts, ends = matches.start_ns[rows], matches.end_ns[rows]
    latest = np.maximum.reduceat(starts, first)
    wait = np.clip(np.repeat(latest, sizes) - starts, 0, ends - starts)

    order = np.lexsort((starts, np.repeat(np.arange(len(first)), sizes)))
    # The median of the other ranks: the lower one of two.
    usual = starts[order[first + (sizes - 2) // 2]]

    transfer = np.maximum.reduceat(ends, first) - latest
    return wait, transfer, rows[order[first + sizes - 1]], latest - usual


def _measure_extra_compute(matches: Matches, last: Rows, computed_ns: Int64s | None) -> Int64s:
    """Measure how much longer the last rank computed than its peers. Shape ``(m,)``.

    Counted since the same ranks last waited for each other, above the median of the peers, the
    lower one of two; :data:`MISSING` where it is not known.
    """
    calls, rows, first = matches.calls, matches.members, matches.first
    if computed_ns is None:
        return np.full(len(first), MISSING)

    group_number = {group.ranks or group: i for i, group in enumerate(calls.groups)}
    ranks = np.array([group_number[group.ranks or group] for group in calls.groups])[calls.group]
    sizes = matches.sizes
    collective = np.repeat(np.arange(len(first)), sizes)

    # The calls of each rank with the same peers, in their order.
    order = np.lexsort((matches.start_ns[rows], calls.member[rows], ranks[rows]))
    order = order[calls.is_kind(SYNCHRONIZING)[rows[order]]]
    ordered_calls = rows[order]
    is_next = (np.diff(calls.member[ordered_calls], prepend=-1) == 0) & (
        np.diff(ranks[ordered_calls], prepend=-1) == 0
    )
    since = np.full(len(rows), MISSING)
    since[order] = np.where(is_next, np.diff(computed_ns[ordered_calls], prepend=0), MISSING)

    is_peer = rows != np.repeat(last, sizes)
    peers = np.flatnonzero(is_peer)
    peers = peers[np.lexsort((since[peers], collective[peers]))]
    begins = np.cumsum(sizes - 1) - (sizes - 1)

    usual, of_last = since[peers[begins + (sizes - 2) // 2]], since[~is_peer]
    is_known = (of_last != MISSING) & (since[peers[begins]] != MISSING)
    return np.where(is_known, np.maximum(of_last - usual, 0), MISSING)


def _explain(
    matches: Matches, last: Rows, delay_ns: Int64s, extra_ns: Int64s
) -> tuple[Lateness, ...]:
    """Explain why each call was late.

    Args:
        extra_ns: How much longer its rank computed since its last call, or :data:`MISSING`. Shape
            ``(m,)``.
    """
    calls = matches.calls
    launched, start = calls.column("launched_ns")[last], calls.column("start_ns")[last]
    idle, waited = calls.column("idle_ns")[last], calls.column("data_wait_ns")[last]
    on_host = ~calls.column("on_device").astype(np.bool_)[last]

    # The rank's own clock is enough, as all of these are differences within one rank.
    is_known = launched != MISSING
    is_compared = extra_ns != MISSING
    is_longer = is_compared & (extra_ns >= _MOST * delay_ns)
    is_host = on_host | (is_known & (is_compared | (start - launched < _MOST * delay_ns)))
    is_data = is_host & (waited >= _MOST * delay_ns)
    is_compute = ~is_compared & (idle != MISSING) & (idle < _MOST * delay_ns)

    names: tuple[Lateness, ...] = ("data", "host", "compute", "unknown")
    chosen = np.select([is_longer, is_data, is_host, is_compute], [2, 0, 1, 2], 3)
    chosen = chosen[_find_origins(matches, last)]
    return tuple(names[number] for number in chosen.tolist())


def _find_origins(matches: Matches, last: Rows) -> Rows:
    """Find the collective in which a rank became late that is late in several at once.

    A rank that starts a collective while its previous one runs, such as for the next bucket of one
    backward pass, has not waited since: it is late by the same time, for the same cause.

    Returns:
        The number of a collective; the own number where the rank has waited since. Shape ``(m,)``.
    """
    calls = matches.calls
    member, group = calls.member[last], calls.group[last]
    order = np.lexsort((matches.start_ns[last], group, member))
    ordered = last[order]

    is_same = (np.diff(member[order], prepend=-1) == 0) & (np.diff(group[order], prepend=-1) == 0)
    previous_end = np.roll(matches.end_ns[ordered], 1)
    continues = is_same & (matches.start_ns[ordered] < previous_end)

    origins = np.empty(len(last), dtype=np.int64)
    places = np.arange(len(last))
    origins[order] = order[np.maximum.accumulate(np.where(continues, 0, places))]
    return origins


def _compute_message_bytes(matches: Matches, last: Rows, is_gather: Mask) -> Float64s:
    """Compute ``message_bytes`` of :class:`Delays` by the sizes that the last rank recorded.

    Args:
        is_gather: Which collectives are all-gathers. Shape ``(m,)``.
    """
    calls = matches.calls
    count = np.where(is_gather, calls.column("n_out")[last], calls.column("n_in")[last])

    widths = [ELEMENT_BYTES.get(name, 0) for name in calls.element_types]
    width = np.array([*widths, 0], dtype=np.float64)[calls.element_type[last]]
    return np.where((count != MISSING) & (width > 0), count * width, np.nan)


def _compute_bus_factors(matches: Matches, last: Rows, kind: npt.NDArray[np.str_]) -> Float64s:
    """Compute ``bus_factor`` of :class:`Delays`. Source: nccl-tests, doc/PERFORMANCE.md."""
    calls = matches.calls
    n_ranks = np.array([group.size or 0 for group in calls.groups])[calls.group[last]]
    n_ranks = np.maximum(n_ranks, matches.sizes)
    peer_share = (n_ranks - 1) / n_ranks

    is_partial = np.isin(kind, ("all-gather", "reduce-scatter", "all-to-all"))
    return np.select([kind == "all-reduce", is_partial], [2 * peer_share, peer_share], 1.0)
