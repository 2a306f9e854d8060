"""Finds collectives on which the ranks of a group disagree."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.steps import NO_STEP
from profkit.index.ranks.job_calls import NO_TEXT, JobCalls
from profkit.index.ranks.matching import (
    EVEN,
    Matches,
    Unmatched,
    numbered,
)
from profkit.model.events import MISSING, Int32s, Int64s, Rows
from profkit.model.process_group import ProcessGroup

_MIN_MATCHED: Final = 0.8
"""The share of the calls before the first difference that have to match: where fewer do, numbers
are wrong, or calls are missing in the recording."""
_ODD: Final = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64
)
"""Multipliers that mix numbers (SplitMix64)."""


@dataclass(frozen=True)
class CollectiveCall:
    """What a rank calls.

    Attributes:
        kind: Such as ``all-reduce``; empty if it calls nothing.
        element_type: Such as ``BFloat16``, or empty.
        n_elements: Number of elements of its input, or None where it is not known or may differ
            between ranks.
    """

    kind: str = ""
    element_type: str = ""
    n_elements: int | None = None


@dataclass(frozen=True)
class Disagreement:
    """The first collective of a group on which its ranks disagree.

    Attributes:
        group: The process group.
        number: The number of the collective in its group, or None where ids are not recorded.
        step: The number of the step, or None.
        calls: What the ranks call, and which ranks do, most ranks first.
        n: On how many collectives of the group, or in how many of its steps, they disagree.
    """

    group: ProcessGroup
    number: int | None
    step: int | None
    calls: tuple[tuple[CollectiveCall, tuple[int, ...]], ...]
    n: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that call it, or should."""
        return tuple(sorted(rank for _, ranks in self.calls for rank in ranks))


def find_disagreements(matches: Matches) -> list[Disagreement]:
    """Find the groups whose ranks call different collectives.

    Numbers of torch tell which calls belong together. Without them, the host's calls in a step do,
    if it is recorded when the host called them.
    """
    calls = matches.calls
    seq, step = calls.column("seq"), calls.column("step")
    rows = np.flatnonzero((calls.n_expected > 1) & (calls.peers[0] == MISSING))
    what = _what(calls)
    # Which step a call is of is known only by when the host made it.
    in_step = (calls.column("issued_ns") != MISSING) & (step != NO_STEP)
    found: list[Disagreement] = []
    for own in np.split(*_by_group(calls, rows)):
        if (seq[own] != MISSING).any():
            found += _by_number(matches, own[seq[own] != MISSING], seq, what)
        elif len(own) and in_step[own].all():
            found += _by_step(calls, own, step, what)
    return found


def _by_group(calls: JobCalls, rows: Rows) -> tuple[Rows, Rows]:
    """Rows by group, in the order in which the host called, and where each group begins."""
    issued, start = calls.column("issued_ns")[rows], calls.column("start_ns")[rows]
    called = np.where(issued == MISSING, start, issued)
    rows = rows[np.lexsort((start, called, calls.member[rows], calls.group[rows]))]
    return rows, np.flatnonzero(np.diff(calls.group[rows])) + 1


def _what(calls: JobCalls) -> Int32s:
    """A number for each call, the same for those of the same kind, type and size."""
    n_in = np.where(calls.is_kind(EVEN), calls.column("n_in"), MISSING)
    return numbered([calls.kind, calls.element_type, n_in])


def _by_number(matches: Matches, rows: Rows, seq: Int64s, what: Int32s) -> Iterator[Disagreement]:
    """The first number of a group that is of different calls on different ranks."""
    calls = matches.calls
    # Calls of one coalescing region have one number.
    rows = rows[np.lexsort((what[rows], seq[rows], calls.member[rows]))]
    differing, _ = _differing(calls, rows, seq, what)
    if not len(differing):
        return
    before = rows[seq[rows] < differing[0]]
    reason = matches.unmatched[before]
    # A collective that only some ranks have recorded is at the border of their windows.
    n_within = int((reason != Unmatched.NO_COUNTERPART).sum())
    if (reason == 0).sum() >= max(1, _MIN_MATCHED * n_within):
        number = int(differing[0])
        told = _difference(calls, rows[seq[rows] == number])
        group = calls.groups[calls.group[rows[0]]]
        yield Disagreement(group, number, None, told, len(differing))


def _by_step(calls: JobCalls, rows: Rows, step: Int64s, what: Int32s) -> Iterator[Disagreement]:
    """The first step of a group in which its ranks call different collectives."""
    differing, n_ranks = _differing(calls, rows, step, what)
    expected = int(calls.n_expected[rows[0]])
    n_complete = sum(n == expected for n in n_ranks.values())
    differing = [each for each in differing if n_ranks[each] == expected]
    # Where no step agrees, what is missing may not be recorded.
    if differing and len(differing) < n_complete:
        number = differing[0]
        told = _difference(calls, rows[step[rows] == number])
        yield Disagreement(calls.groups[calls.group[rows[0]]], None, number, told, len(differing))


def _differing(
    calls: JobCalls, rows: Rows, by: Int64s, what: Int32s
) -> tuple[list[int], dict[int, int]]:
    """The values of a column at which ranks call different collectives, or in another order.

    Args:
        rows: In the order of each rank's calls.

    Returns:
        These values, ascending, and of each value how many ranks have it.
    """
    own = rows[np.lexsort((np.arange(len(rows)), calls.member[rows], by[rows]))]
    is_new = np.diff(by[own], prepend=by[own[0]] - 1) != 0
    is_new |= np.diff(calls.member[own], prepend=-1) != 0
    first = np.flatnonzero(is_new)
    place = np.arange(len(own)) - first[np.cumsum(is_new) - 1]
    # Sums of pseudorandom numbers for each call and its place.
    mixed = (what[own].astype(np.uint64) + 1) * _ODD[0] + place.astype(np.uint64) * _ODD[1]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD[2]
    total = np.add.reduceat(mixed, first)
    value = by[own[first]]
    begins = np.flatnonzero(np.diff(value, prepend=value[0] - 1))
    differ = np.minimum.reduceat(total, begins) != np.maximum.reduceat(total, begins)
    n = np.diff(np.append(begins, len(value)))
    values = value[begins]
    return values[differ].tolist(), dict(zip(values.tolist(), n.tolist(), strict=True))


def _difference(calls: JobCalls, rows: Rows) -> tuple[tuple[CollectiveCall, tuple[int, ...]], ...]:
    """What ranks call at the first place at which they differ, as in :class:`Disagreement`."""
    by_rank: dict[int, list[CollectiveCall]] = defaultdict(list)
    n_in = calls.column("n_in")
    for row in rows.tolist():
        own, kind, n = calls.ranks[calls.member[row]], calls.kinds[calls.kind[row]], int(n_in[row])
        size = None if n == MISSING or kind not in EVEN else n
        number = int(calls.element_type[row])
        element_type = "" if number == NO_TEXT else calls.element_types[number]
        call = CollectiveCall(kind, element_type, size)
        by_rank[own.rank].append(call)
    for place in zip_longest(*by_rank.values(), fillvalue=CollectiveCall()):
        ranks: dict[CollectiveCall, list[int]] = defaultdict(list)
        for rank, call in zip(by_rank, place, strict=True):
            ranks[call].append(rank)
        if len(ranks) > 1:
            ordered = sorted(ranks.items(), key=lambda pair: (-len(pair[1]), pair[1]))
            return tuple((call, tuple(sorted(own))) for call, own in ordered)
    return ()
