"""How late each rank is in all steps of a run, and whether chance explains it.

A few recorded steps do not tell a rank that is slow from one that was disturbed. The dumps of
torch's FlightRecorder at the end of the run have when each rank called its last 2,000 collectives,
and profkit has added when its steps ended, how long it had no core in them, and what profkit did
itself.

Ranks leave a collective together. By how much later one calls the next collective is what it has
taken longer since, whatever group that one is in: ranks that come from different collectives may
have waited for a slow transfer before. Several collectives may be called before the first of them
is waited for, as for the buckets of a backward pass: they are late for one reason, and the last one
counts.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import exp, lgamma, log, log1p
from typing import Final, NamedTuple

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.ranks.collectives import collective_kind
from profkit.index.ranks.matching import SYNCHRONIZING
from profkit.model.events import Float64s, Int64s, Mask
from profkit.model.flight_record import FlightRecord, RankSteps

MIN_RUN_STEPS: Final = 8
"""Of fewer steps none tells a slow rank from chance."""
_N_BLOCKS: Final = 16
"""Parts of the run that are compared: disturbances last for many steps."""
_MAX_CHANCE: Final = 0.01
_MIN_OVERLAPS: Final = 0.02
"""Share of the steps in which a rank calls a collective before all have called the one before it:
nothing waits between the two."""
_HOST_BACKENDS: Final = ("gloo:", "mpi:")
"""On these a call waits on the host. On a device it is only launched, at any time before."""
_DISTURBED_PART: Final = 0.05
"""The part of a rank's time without a core by which it may be late besides: after each pause the
caches are cold."""

_MIN_OFTEN: Final = 0.15
"""Share of the late steps from which a rank is one of those that take turns."""
_MIN_LATE: Final = 0.3
"""Share of the steps in which any rank has to be late."""
_MIN_STEPS_OF_TURN: Final = 3
_MIN_CORRELATION: Final = 0.6
_NEVER: Final = np.iinfo(np.int64).min
_EARLY_PART: Final = 0.05
"""The part of its lateness by which a rank may have come later from its collective before."""
_MAX_EXACT: Final = 64
"""Ranks up to which one of them moves the median of all."""


class _Calls(NamedTuple):
    """The collectives of a process group on one rank, by number.

    Attributes:
        number: Ascending. Shape ``(k,)``.
        called_ns: When each was called.
        step: The number of the step in which that was.
        follows: Whether the rank's call before, if any, was of the same group.
        before: The place of that call among all calls of the rank, or -1.
        next_ns: When the rank called its next collective, of any group; 0 after the last one.
        next_step: The number of the step in which that was, or -1.
        place: Its place among all calls of the rank. Shape ``(k,)``.
    """

    number: Int64s
    called_ns: Int64s
    step: Int64s
    follows: Mask
    before: Int64s
    next_ns: Int64s
    next_step: Int64s
    place: Int64s


@dataclass(frozen=True)
class RunLateness:
    """How late ranks are over a run.

    Attributes:
        steps: The numbers of the steps that are known of all ranks, from 1. Shape ``(s,)``.
        steps_ns: Their usual time on all ranks. Shape ``(s,)``.
        late_ns: How much later than the median of the others each rank is, without the time in
            which it had no core. Shape ``(ranks, s)``.
        cpu_ns: Processor time of each rank. Shape ``(ranks, s)``.
        disturbed_ns: The time without a core that was taken off. Shape ``(ranks, s)``.
    """

    steps: Int64s
    steps_ns: Int64s
    late_ns: Float64s
    cpu_ns: Float64s
    disturbed_ns: Float64s

    @cached_property
    def step_ns(self) -> float:
        """Return the usual time of a step, without the time in which ranks had no core."""
        return float(np.median(self.steps_ns - self.disturbed_ns.mean(axis=0)))

    @cached_property
    def noise_ns(self) -> float:
        """Return by how much a rank may seem late since other programs take the cores."""
        return _DISTURBED_PART * float(np.median(self.disturbed_ns.mean(axis=0)))

    def usual_lateness_ns(self, rank: int) -> float:
        """Return how late a rank is in its usual step."""
        return float(np.median(self.late_ns[rank]))

    def saving_ns(self, rank: int) -> float:
        """Return what a step would save if a rank were like the others: the next one is late."""
        others_ns = np.delete(self.late_ns, rank, axis=0).max(axis=0)
        return float(np.median(self.late_ns[rank] - np.maximum(others_ns, 0.0)))

    def count_late(self, rank: int) -> int:
        """Count the steps in which a rank is the last by at least half of its usual lateness."""
        is_last = self.late_ns.argmax(axis=0) == rank
        is_late = self.late_ns[rank] >= self.usual_lateness_ns(rank) / 2
        return int((is_last & is_late).sum())

    def is_always_late(self, rank: int, min_share: float) -> bool:
        """Return whether a rank is late in more parts of the run than chance explains.

        Args:
            min_share: By how much of a step at least.
        """
        least_ns, late_ns = min_share * self.step_ns, self.usual_lateness_ns(rank)
        if late_ns >= max(least_ns, self.noise_ns) and is_longer_than_chance(
            self.late_ns[rank], len(self.late_ns)
        ):
            return True

        # Processor time is hardly disturbed, and tells smaller differences if it is what is late.
        work_ns = float(np.median(self.work_ns[rank]))
        is_late = late_ns >= work_ns / 2 and work_ns >= least_ns
        return is_late and is_longer_than_chance(self.work_ns[rank], len(self.work_ns))

    def is_late_by_work(self, rank: int) -> bool:
        """Return whether most of a rank's usual lateness is processor time."""
        return float(np.median(self.work_ns[rank])) >= self.usual_lateness_ns(rank) / 2

    def computes_longer(self, turn: "Turn") -> bool:
        """Return whether most of a rank's lateness in its turn is processor time."""
        within = (self.steps >= turn.first) & (self.steps <= turn.last)
        work_ns = float(np.median(self.work_ns[turn.rank, within]))
        return work_ns >= float(np.median(self.late_ns[turn.rank, within])) / 2

    @cached_property
    def work_ns(self) -> Float64s:
        """Return how much more processor time each rank takes than the median of the others."""
        return _above_others(self.cpu_ns)

    def find_turns(self, min_share: float) -> "list[Turn]":
        """Find the steps in which one rank after the other is late, if they take turns.

        Args:
            min_share: By how much of a step at least.

        Returns:
            By step, or nothing: one rank alone is late, or which one it is changes by chance.
        """
        last = self.late_ns.argmax(axis=0)
        is_late = self.late_ns.max(axis=0) >= max(min_share * self.step_ns, self.noise_ns)
        late, steps = last[is_late], np.flatnonzero(is_late)
        ranks, n_late = np.unique(late, return_counts=True)
        often = ranks[n_late >= _MIN_OFTEN * len(late)]
        if len(late) < max(MIN_RUN_STEPS, _MIN_LATE * len(self.steps)) or len(often) < 2:  # noqa: PLR2004  (ranks that take turns)
            return []

        # By chance the next step has the same rank as often as any other one.
        n_same = int((np.diff(late) == 0).sum())
        p_same = float(((n_late / len(late)) ** 2).sum())
        if _chance(n_same, len(late) - 1, p_same) >= _MAX_CHANCE / 10:
            return []
        return list(self._join_turns(late, steps))

    def _join_turns(self, late: Int64s, steps: Int64s) -> "Iterator[Turn]":
        """Join neighbours of one rank, over single steps of another."""
        begins = np.flatnonzero(np.diff(late, prepend=-1))
        parts = np.split(np.arange(len(late)), begins[1:])
        long = [part for part in parts if len(part) >= _MIN_STEPS_OF_TURN]

        joined: list[list[int]] = []
        for part in long:
            if joined and late[joined[-1][0]] == late[part[0]]:
                joined[-1] += part.tolist()
            else:
                joined.append(part.tolist())

        for members in joined:
            rank, within = int(late[members[0]]), steps[members]
            yield Turn(
                rank,
                int(self.steps[within[0]]),
                int(self.steps[within[-1]]),
                float(self.late_ns[rank, within].sum()),
            )

    @cached_property
    def uneven_ns(self) -> float:
        """Return what ranks wait per step since another one has more to compute in that step.

        Processor time tells it: other programs that take the cores add nothing to it.
        """
        more_ns = self.work_ns - np.median(self.work_ns, axis=1, keepdims=True)
        if not more_ns.any():
            return 0.0

        # Spearman's: single steps are disturbed by many times of what they take.
        orders = np.array(
            [values.ravel().argsort().argsort() for values in (more_ns, self.late_ns)],
            dtype=np.float64,
        )
        if float(np.atleast_2d(np.corrcoef(orders))[0, 1]) < _MIN_CORRELATION:
            return 0.0
        return float(np.median(more_ns.max(axis=0)))


class Turn(NamedTuple):
    """Steps in which one rank is late.

    Attributes:
        rank: Its index.
        first: The number of the first step.
        last: The number of the last step.
        late_ns: How late it is in all of them together.
    """

    rank: int
    first: int
    last: int
    late_ns: float


def find_run_lateness(
    records: Sequence[FlightRecord], shifts_ns: Sequence[int]
) -> RunLateness | None:
    """Find how late ranks are in all steps that are known of all.

    Args:
        records: The dump of each rank at the end of the program, with the times of its steps.
        shifts_ns: By how much the clock of each rank is ahead.

    Returns:
        None where not all ranks have steps, or too few steps have collectives on the host.
    """
    times = [record.steps for record in records]
    steps = [step for step in times if step is not None]
    if len(records) < 2 or len(steps) < len(records):  # noqa: PLR2004  (none to compare)
        return None

    groups: dict[tuple[str, str], dict[int, _Calls]] = {}
    for rank, (record, step_times, shift_ns) in enumerate(
        zip(records, steps, shifts_ns, strict=True)
    ):
        for group, calls in _list_calls(record, step_times, shift_ns):
            groups.setdefault(group, {})[rank] = calls

    n_steps = max(step.first + len(step.ends_ns) for step in steps) + 2
    several = [calls for calls in groups.values() if len(calls) > 1]
    released_ns = _find_releases(several, len(records))
    late_of_group = [_measure_group(calls, released_ns, n_steps) for calls in several]
    if not late_of_group:
        return None

    # What one rank is late in one group, the ranks that wait for it are in their other groups. The
    # sum leaves it with the first one, of which no single group shows more.
    by_group = np.array(late_of_group)
    is_known = ~np.isnan(by_group)
    least_ns = np.where(is_known, by_group, np.inf).min(axis=0)
    most_ns = np.where(is_known, by_group, -np.inf).max(axis=0)
    late_ns = np.clip(np.nansum(by_group, axis=0), least_ns, most_ns)
    return _build_lateness(np.where(is_known.any(axis=0), late_ns, np.nan), steps)


def _build_lateness(late_ns: Float64s, steps: Sequence[RankSteps]) -> RunLateness | None:
    """Take off what disturbed the ranks, in the steps that all have."""
    times = list_run_times(steps, late_ns.shape[1])
    is_late_known = np.asarray(~np.isnan(late_ns[:, times.steps]).all(axis=0))
    if is_late_known.sum() < MIN_RUN_STEPS:
        return None

    times = times.select(is_late_known)
    fair_ns = np.nan_to_num(late_ns[:, times.steps]) - _above_others(
        times.own_ns + times.delayed_ns
    )
    return RunLateness(
        steps=times.steps,
        steps_ns=np.median(times.steps_ns, axis=0).astype(np.int64),
        late_ns=fair_ns,
        cpu_ns=times.cpu_ns,
        disturbed_ns=times.delayed_ns,
    )


@dataclass(frozen=True)
class RunTimes:
    """What all ranks have noted of the steps of a run. Shape ``(ranks, s)`` but for the first.

    Attributes:
        steps: The numbers of the steps that all ranks have, from 1. Shape ``(s,)``.
        steps_ns: The times of the steps, without profkit's own.
        own_ns: How long profkit stopped the program.
        delayed_ns: Time without a core.
        cpu_ns: Processor time.
    """

    steps: Int64s
    steps_ns: Float64s
    own_ns: Float64s
    delayed_ns: Float64s
    cpu_ns: Float64s

    def select(self, is_selected: Mask) -> "RunTimes":
        """Select some steps."""
        columns = (self.steps_ns, self.own_ns, self.delayed_ns, self.cpu_ns)
        return RunTimes(self.steps[is_selected], *(column[:, is_selected] for column in columns))


def list_run_times(steps: Sequence[RankSteps], n_steps: int | None = None) -> RunTimes:
    """List what ranks have noted of the steps that all have.

    Args:
        n_steps: The first number that is no step's; None to compute it.
    """
    end = n_steps or max(times.first + len(times.ends_ns) for times in steps) + 2
    columns = np.full((4, len(steps), end), np.nan)
    for rank, times in enumerate(steps):
        ends_ns = np.array(times.ends_ns, dtype=np.float64)
        own_ns = np.array(times.own_ns)
        # The first one has begun with the program.
        places = times.first + 1 + np.arange(1, len(ends_ns))
        columns[0, rank, places] = np.diff(ends_ns) - own_ns[1:]
        columns[1, rank, places] = own_ns[1:]
        columns[2, rank, places] = np.array(times.delayed_ns)[1:]
        columns[3, rank, places] = np.array(times.cpu_ns)[1:]

    is_known = ~np.isnan(columns).any(axis=(0, 1))
    return RunTimes(np.flatnonzero(is_known), *columns[:, :, is_known])


def _list_calls(
    record: FlightRecord, times: RankSteps, shift_ns: int
) -> Iterator[tuple[tuple[str, str], _Calls]]:
    """Yield the collectives that ranks wait in, by process group."""
    by_group: dict[tuple[str, str], dict[int, int]] = {}
    for call in record.calls:
        if (
            not call.is_p2p
            and call.seq is not None
            and call.created_ns
            and call.name.startswith(_HOST_BACKENDS)
            and collective_kind(call.name) in SYNCHRONIZING
        ):
            calls = by_group.setdefault((call.group, call.description), {})
            calls.setdefault(call.seq, call.created_ns)

    ends_ns = np.array(times.ends_ns, dtype=np.int64)
    numbers = [np.array(sorted(calls), dtype=np.int64) for calls in by_group.values()]
    if not numbers:
        return

    # All calls of the rank in their order: what follows a collective may be of another group.
    called = [
        [calls[n] for n in number.tolist()]
        for number, calls in zip(numbers, by_group.values(), strict=True)
    ]
    called_ns = np.concatenate(called).astype(np.int64)
    group_number = np.repeat(np.arange(len(numbers)), list(map(len, numbers)))
    step = times.first + 1 + np.searchsorted(ends_ns, called_ns)
    # Before the first end that is known, any number of steps may have ended.
    step[(called_ns < ends_ns[0]) | (called_ns > ends_ns[-1])] = -1

    order = np.argsort(called_ns, kind="stable")
    follows = np.ones(len(order), dtype=np.bool_)
    follows[order[1:]] = group_number[order[1:]] == group_number[order[:-1]]
    next_ns, next_step = np.zeros_like(called_ns), np.full_like(step, -1)
    before = np.full_like(step, -1)
    before[order[1:]] = order[:-1]
    next_ns[order[:-1]] = called_ns[order[1:]] - shift_ns
    next_step[order[:-1]] = step[order[1:]]

    for i, (group, number) in enumerate(zip(by_group, numbers, strict=True)):
        rows = np.flatnonzero(group_number == i)
        yield (
            group,
            _Calls(
                number,
                called_ns[rows] - shift_ns,
                step[rows],
                follows[rows],
                before[rows],
                next_ns[rows],
                next_step[rows],
                rows,
            ),
        )


def _find_releases(groups: Sequence[dict[int, _Calls]], n_ranks: int) -> list[Int64s]:
    """Find when each rank could leave each of its collectives: when the last rank has called it.

    Returns:
        By rank, at the place of the call; :data:`_NEVER` of calls that are not known of all.
    """
    by_rank: list[dict[int, int]] = [{} for _ in range(n_ranks)]
    for calls in groups:
        common = _find_common(calls)
        rows = {rank: np.searchsorted(calls[rank].number, common) for rank in calls}
        last_ns = np.max([calls[rank].called_ns[rows[rank]] for rank in calls], axis=0)
        for rank in calls:
            places = calls[rank].place[rows[rank]].tolist()
            by_rank[rank].update(zip(places, last_ns.tolist(), strict=True))

    released_ns = []
    for known in by_rank:
        # The last element is the one before the first call.
        values = np.full(max(known, default=-1) + 2, _NEVER)
        values[list(known)] = list(known.values())
        released_ns.append(values)
    return released_ns


def _find_common(calls: dict[int, _Calls]) -> Int64s:
    """Find the numbers of the collectives that all ranks of a group have called."""
    first, *others = (rank_calls.number for rank_calls in calls.values())
    for number in others:
        first = np.intersect1d(first, number)
    return first


def _measure_group(
    calls: dict[int, _Calls], released_ns: Sequence[Int64s], n_steps: int
) -> Float64s:
    """Measure how late each rank of a process group is in each step.

    Args:
        released_ns: As :func:`_find_releases` returns it.

    Returns:
        Nanoseconds, NaN of other ranks and steps. Shape ``(n_ranks, n_steps)``.
    """
    late_ns = np.full((len(released_ns), n_steps), np.nan)
    members, common = list(calls), _find_common(calls)
    rows = {member: np.searchsorted(calls[member].number, common) for member in members}

    def collect(name: str) -> Int64s:
        return np.array([getattr(calls[member], name)[rows[member]] for member in members])

    late_by_step = np.zeros((len(members), n_steps))
    is_step_known = np.zeros(n_steps, dtype=np.bool_)
    before_ns = np.array(
        [released_ns[member][calls[member].before[rows[member]]] for member in members]
    )
    columns = map(collect, ("called_ns", "step", "follows", "next_ns", "next_step"))
    for called_ns, step in _list_arrivals(before_ns, *columns):
        is_step_known[step] = True
        above_ns = _above_others(called_ns.astype(np.float64))
        for place in range(len(members)):
            late_by_step[place] += np.bincount(step, weights=above_ns[place], minlength=n_steps)

    late_ns[members] = np.where(is_step_known, late_by_step, np.nan)
    return late_ns


def _list_arrivals(
    before_ns: Int64s,
    called_ns: Int64s,
    steps: Int64s,
    follows: Int64s,
    next_ns: Int64s,
    next_steps: Int64s,
) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield when the ranks of a group arrived where it is known who made the others wait.

    Args:
        before_ns: When each could leave its collective before. All are by rank of the group and
            call, shape ``(ranks, k)``.

    Yields:
        Times by rank, and the steps that they are in.
    """
    # Ranks that count other steps are not compared.
    is_same = (steps == steps[0]).all(axis=0) & (steps[0] >= 0)
    if is_same.any():
        is_fair = follows.all(axis=0) | _is_late_by_itself(called_ns, before_ns)
        is_waited_for = _find_waited_for(called_ns[:, is_same], steps[0][is_same])
        is_waited_for &= is_fair[is_same]
        yield called_ns[:, is_same][:, is_waited_for], steps[0][is_same][is_waited_for]

    # Where ranks go on in other groups, they have left this collective together as well.
    follows_next = np.ones(called_ns.shape[1], dtype=np.bool_)
    follows_next[:-1] = follows[:, 1:].all(axis=0)
    is_next = ~follows_next & (next_steps == next_steps[0]).all(axis=0) & (next_steps[0] >= 0)
    if is_next.any():
        yield next_ns[:, is_next], next_steps[0][is_next]


def _is_late_by_itself(called_ns: Int64s, before_ns: Int64s) -> Mask:
    """Return where the last rank could leave its collective before as early as the others.

    One that came from another collective later may have waited for its transfer. Shape ``(k,)``.
    """
    place = np.arange(called_ns.shape[1])
    last = called_ns.argmax(axis=0)
    late_ns = called_ns[last, place] - called_ns.min(axis=0)
    later_ns = before_ns[last, place] - before_ns.min(axis=0)
    is_known = (before_ns != _NEVER).all(axis=0)
    return np.asarray(is_known & (later_ns <= _EARLY_PART * late_ns))


def _find_waited_for(called_ns: Int64s, step: Int64s) -> Mask:
    """Return which collectives are waited for before the next one is called.

    Args:
        called_ns: By rank. Shape ``(ranks, k)``.
        step: Ascending. Shape ``(k,)``.
    """
    begins = np.flatnonzero(np.diff(step, prepend=-1))
    n_calls = np.diff(np.append(begins, len(step)))
    place = np.arange(len(step)) - np.repeat(begins, n_calls)

    # A rank that calls it before all have called the one before has not waited for that one.
    overlaps = np.zeros(len(step), dtype=np.float64)
    overlaps[1:] = called_ns[:, 1:].min(axis=0) < called_ns[:, :-1].max(axis=0)
    n_at_place = np.bincount(place)
    share = np.bincount(place, weights=overlaps) / n_at_place
    is_free = (share >= _MIN_OVERLAPS)[place]

    # Steps are apart: what follows a step's last collective is waited for in any case.
    is_last = np.append(np.diff(step) != 0, True)
    return np.asarray(is_last | ~np.append(is_free[1:], False))


def _above_others(values: Float64s) -> Float64s:
    """Return by how much each row is above the median of the other rows. Shape ``(ranks, k)``."""
    n_ranks = len(values)
    if n_ranks > _MAX_EXACT:
        return np.asarray(values - np.median(values, axis=0))
    others = [np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(n_ranks)]
    return np.asarray(values - np.array(others))


def is_longer_than_chance(longer_ns: Float64s, n_compared: int) -> bool:
    """Return whether something takes longer in more parts of the run than chance explains.

    Args:
        longer_ns: How much longer it takes, by step.
        n_compared: Of how many it is the longest.
    """
    blocks = np.array_split(longer_ns, min(_N_BLOCKS, len(longer_ns)))
    # A sign test: by chance it takes longer in one of two parts.
    n_longer = sum(float(np.median(block)) > 0 for block in blocks)
    return _chance(n_longer, len(blocks), 0.5) * n_compared < _MAX_CHANCE


def _chance(n: int, of: int, p: float) -> float:
    """Return how likely chance makes at least ``n`` hits, each with probability ``p``."""
    # By logarithms, as the binomial coefficients of a thousand steps are no floats.
    logs = (
        lgamma(of + 1) - lgamma(k + 1) - lgamma(of - k + 1) + k * log(p) + (of - k) * log1p(-p)
        for k in range(n, of + 1)
    )
    return sum(map(exp, logs))
