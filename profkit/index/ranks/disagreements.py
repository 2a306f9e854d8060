"""Finds collectives on which the ranks of a group disagree."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.steps import NO_STEP
from profkit.index.ranks.job_calls import NO_TEXT, JobCalls
from profkit.index.ranks.matching import EVEN, Matches, Unmatched, number_rows
from profkit.model.events import MISSING, Int32s, Int64s, Rows
from profkit.model.process_group import ProcessGroup

_MIN_MATCHED: Final = 0.8
"""The share of the calls before the first difference that have to match: if fewer match, numbers
are wrong, or calls are missing in the recording."""
_ODD: Final = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64
)
"""Multipliers that mix numbers (SplitMix64)."""


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that a rank calls.

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
        """Return all ranks that call it, or should."""
        return tuple(sorted(rank for _, ranks in self.calls for rank in ranks))


def find_disagreements(matches: Matches) -> list[Disagreement]:
    """Find the groups whose ranks call different collectives.

    Numbers of torch tell which calls belong together. Without them, the order of the host's calls
    in a step tells it, if the recording has the times of these calls.
    """
    calls = matches.calls
    seq, step = calls.column("seq"), calls.column("step")
    rows = np.flatnonzero((calls.n_expected > 1) & (calls.peers[0] == MISSING))
    what = _number_by_content(calls)
    # Only the time of the host's call tells to which step a collective belongs.
    in_step = (calls.column("issued_ns") != MISSING) & (step != NO_STEP)

    disagreements: list[Disagreement] = []
    for group_rows in np.split(*_sort_by_group(calls, rows)):
        has_number = seq[group_rows] != MISSING
        if has_number.any():
            disagreements += _find_by_number(matches, group_rows[has_number], seq, what)
        elif len(group_rows) and in_step[group_rows].all():
            disagreements += _find_by_step(calls, group_rows, step, what)
    return disagreements


def _sort_by_group(calls: JobCalls, rows: Rows) -> tuple[Rows, Rows]:
    """Sort rows by group and host call, and return where the second and later groups begin."""
    issued, start = calls.column("issued_ns")[rows], calls.column("start_ns")[rows]
    called = np.where(issued == MISSING, start, issued)
    rows = rows[np.lexsort((start, called, calls.member[rows], calls.group[rows]))]
    return rows, np.flatnonzero(np.diff(calls.group[rows])) + 1


def _number_by_content(calls: JobCalls) -> Int32s:
    """Number the calls, with the same number for calls of the same kind, type and size."""
    n_in = np.where(calls.is_kind(EVEN), calls.column("n_in"), MISSING)
    return number_rows([calls.kind, calls.element_type, n_in])


def _find_by_number(
    matches: Matches, rows: Rows, seq: Int64s, what: Int32s
) -> Iterator[Disagreement]:
    """Find the first number of a group whose calls differ between ranks."""
    calls = matches.calls
    # Calls of one coalescing region have one number.
    rows = rows[np.lexsort((what[rows], seq[rows], calls.member[rows]))]
    differing, _ = _find_differing(calls, rows, seq, what)
    if not len(differing):
        return

    before = rows[seq[rows] < differing[0]]
    reason = matches.unmatched[before]
    # A collective that only some ranks have recorded is at the border of their windows.
    n_within = int((reason != Unmatched.NO_COUNTERPART).sum())
    if (reason == 0).sum() >= max(1, _MIN_MATCHED * n_within):
        number = int(differing[0])
        calls_by_content = _describe_difference(calls, rows[seq[rows] == number])
        group = calls.groups[calls.group[rows[0]]]
        yield Disagreement(group, number, None, calls_by_content, len(differing))


def _find_by_step(
    calls: JobCalls, rows: Rows, step: Int64s, what: Int32s
) -> Iterator[Disagreement]:
    """Find the first step of a group in which its ranks call different collectives."""
    differing, n_ranks = _find_differing(calls, rows, step, what)

    expected = int(calls.n_expected[rows[0]])
    n_complete = sum(n == expected for n in n_ranks.values())
    differing = [number for number in differing if n_ranks[number] == expected]
    # Where no step agrees, the missing calls may not be recorded.
    if differing and len(differing) < n_complete:
        number = differing[0]
        calls_by_content = _describe_difference(calls, rows[step[rows] == number])
        yield Disagreement(
            calls.groups[calls.group[rows[0]]], None, number, calls_by_content, len(differing)
        )


def _find_differing(
    calls: JobCalls, rows: Rows, by: Int64s, what: Int32s
) -> tuple[list[int], dict[int, int]]:
    """Find the values of a column at which ranks call different collectives, or in another order.

    Args:
        rows: In the order of each rank's calls.

    Returns:
        Differing values, ascending, and for each value how many ranks have it.
    """
    ordered = rows[np.lexsort((np.arange(len(rows)), calls.member[rows], by[rows]))]
    is_new = np.diff(by[ordered], prepend=by[ordered[0]] - 1) != 0
    is_new |= np.diff(calls.member[ordered], prepend=-1) != 0
    first = np.flatnonzero(is_new)

    place = np.arange(len(ordered)) - first[np.cumsum(is_new) - 1]
    # Hash the sequence of each rank: sums of pseudorandom numbers for each call and its place.
    mixed = (what[ordered].astype(np.uint64) + 1) * _ODD[0] + place.astype(np.uint64) * _ODD[1]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD[2]

    total = np.add.reduceat(mixed, first)

    value = by[ordered[first]]
    begins = np.flatnonzero(np.diff(value, prepend=value[0] - 1))
    differ = np.minimum.reduceat(total, begins) != np.maximum.reduceat(total, begins)
    n_ranks = np.diff(np.append(begins, len(value)))
    values = value[begins]
    return values[differ].tolist(), dict(zip(values.tolist(), n_ranks.tolist(), strict=True))


def _describe_difference(
    calls: JobCalls, rows: Rows
) -> tuple[tuple[CollectiveCall, tuple[int, ...]], ...]:
    """Return ``calls`` of :class:`Disagreement` at the first place at which ranks differ."""
    by_rank: dict[int, list[CollectiveCall]] = defaultdict(list)
    n_in = calls.column("n_in")
    for row in rows.tolist():
        rank, kind = calls.ranks[calls.member[row]].rank, calls.kinds[calls.kind[row]]
        n = int(n_in[row])
        size = None if n == MISSING or kind not in EVEN else n
        number = int(calls.element_type[row])
        element_type = "" if number == NO_TEXT else calls.element_types[number]
        by_rank[rank].append(CollectiveCall(kind, element_type, size))

    for place in zip_longest(*by_rank.values(), fillvalue=CollectiveCall()):
        ranks: dict[CollectiveCall, list[int]] = defaultdict(list)
        for rank, call in zip(by_rank, place, strict=True):
            ranks[call].append(rank)
        if len(ranks) > 1:
            ordered = sorted(ranks.items(), key=lambda pair: (-len(pair[1]), pair[1]))
            return tuple((call, tuple(sorted(members))) for call, members in ordered)
    return ()
