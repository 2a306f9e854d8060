"""The part of a report on the ranks of a job, and on the collectives between them."""

from typing import Literal

from profkit.dataclass import dataclass

UnmatchedReason = Literal[
    "not-recorded", "no-counterpart", "different", "ends-apart", "unknown-peer"
]
Lateness = Literal["host", "data", "compute", "unknown"]


@dataclass(frozen=True)
class RankSummary:
    """One rank. Times are means per step, or for the whole recording without steps.

    Attributes:
        rank: Its number in the job.
        host: The machine, or None where it was not recorded.
        file: Its recording.
        step_names: The name of each complete step, such as ``ProfilerStep#4``.
        steps_ns: Step time of each complete step.
        steps_wait_ns: The part of each in any matched collective until the last rank had started.
        step_ns: Mean step time.
        compute_ns: Time in which a device ran kernels other than collectives; on the host, time of
            operators, the optimizer and the backward pass.
        data_wait_ns: Time in which the program waited for its next batch.
        collective_wait_ns: Time in any matched collective until the last rank had started it; per
            step that all ranks have, where they have not recorded the same.
        transfer_ns: The rest of the time in any matched collective.
        n_last: In how many matched collectives it was the last to start, by more than the clocks'
            error.
        late_ns: How much later than the median of the other ranks in total.
        offset_ns: How far its clock is ahead of the first rank's.
        error_ns: How far single ends of collectives deviate from that offset.
    """

    rank: int
    host: str | None
    file: str
    step_names: tuple[str, ...]
    steps_ns: tuple[int, ...]
    steps_wait_ns: tuple[int, ...]
    step_ns: int | None
    compute_ns: int | None
    data_wait_ns: int
    collective_wait_ns: int
    transfer_ns: int
    n_last: int
    late_ns: int
    offset_ns: int
    error_ns: int


@dataclass(frozen=True)
class LastRank:
    """A rank that was the last to start collectives of a group.

    Attributes:
        rank: Its number in the job.
        n: In how many.
        late_ns: How much later than the median of the others in total.
        why: Why, in most of this time: its ``host`` launched it late, it waited for ``data``, its
            device still ran ``compute``, or that is ``unknown``.
    """

    rank: int
    n: int
    late_ns: int
    why: Lateness


@dataclass(frozen=True)
class CollectiveSize:
    """The matched collectives of one kind, process group, type and size.

    Attributes:
        element_type: Such as ``BFloat16``, or empty where it was not recorded.
        message_bytes: Size of the message as nccl-tests defines it: of an all-gather the output of
            a rank, of all other kinds its input. None where it was not recorded.
        n: Number of collectives.
        mean_skew_ns: Time from the start on the first rank to the start on the last, mean.
        median_skew_ns: The same, median: the lower one of two.
        p95_skew_ns: The same: 95% of the collectives have at most this.
        transfer_ns: Sum over the collectives of the time from the start on the last rank to the end
            on all.
        algorithm_bytes_per_s: ``message_bytes`` of all of them divided by ``transfer_ns``, or None
            without sizes.
        bus_bytes_per_s: Bus bandwidth as nccl-tests defines it, or None without sizes.
    """

    element_type: str
    message_bytes: int | None
    n: int
    mean_skew_ns: int
    median_skew_ns: int
    p95_skew_ns: int
    transfer_ns: int
    algorithm_bytes_per_s: int | None
    bus_bytes_per_s: int | None


@dataclass(frozen=True)
class CollectiveGroup:
    """All matched collectives of a kind in a process group.

    Attributes:
        group: Its name, or empty where it was not recorded.
        description: Its purpose, such as ``default_pg``.
        ranks: Its recorded ranks.
        kind: Such as ``all-reduce``.
        n: Number of collectives.
        wait_ns: Sum over its calls of the time until the last rank had started.
        transfer_ns: Sum over its collectives of the time from then to the end on all ranks.
        bus_bytes_per_s: Bus bandwidth as nccl-tests defines it, or None without sizes.
        last: The ranks that were last by more than the clocks' error, most often first.
        n_hosts: On how many machines its recorded ranks are, or None where that was not recorded.
        sizes: Its collectives by type and size, those with the longest transfers first; at most 50.
    """

    group: str
    description: str
    ranks: tuple[int, ...]
    kind: str
    n: int
    wait_ns: int
    transfer_ns: int
    bus_bytes_per_s: int | None
    last: tuple[LastRank, ...]
    n_hosts: int | None = None
    sizes: tuple[CollectiveSize, ...] = ()


@dataclass(frozen=True)
class UnmatchedCalls:
    """Calls of collectives that were matched with none of another rank; they are in no figure.

    Attributes:
        reason: ``not-recorded``: of all ranks of the group that are recorded it is the only one.
            ``no-counterpart``: a recorded rank has none that could be it. ``different``: kind, type
            or sizes differ. ``ends-apart``: they do not run at once, or end at different times.
            ``unknown-peer``: sends and receives of which the other rank is not recorded.
        n: Number of calls.
    """

    reason: UnmatchedReason
    n: int


@dataclass(frozen=True)
class SlowRanks:
    """Ranks that the others wait for.

    Attributes:
        ranks: One rank, or all of a stage.
        stage: The stage of a pipeline, or None for a single rank.
        saving_ns: The time that the job would save per step if these ranks were as fast as the
            average rank.
        share: The saving as a share of the saving if all ranks were equally fast.
    """

    ranks: tuple[int, ...]
    stage: int | None
    saving_ns: int
    share: float


@dataclass(frozen=True)
class Slowdown:
    """The cost of differences between ranks, by replay. Times are means per step.

    A rank's own time is the time in which it does not wait for a collective.

    Attributes:
        n_steps: Number of steps that were replayed; 0 for the whole recording without steps.
        recorded_ns: The time of the job, from the start of the first step on the rank that began
            last to the end of the last step on any rank.
        actual_ns: ``recorded_ns`` without idle time for which the recording has no reason.
        ideal_ns: The time of the job if all ranks had equally much own time, at the same places,
            and transfers of the same kind, use and size took their median. Of what that saves, the
            time is left out for which a rank had no core, which equal ranks may lack as well.
        ratio: ``actual_ns`` divided by ``ideal_ns``.
        unexplained_share: That idle time, as a share of the time of the job.
        ranks: The ranks with the largest savings, the largest first.
        stages: The stages of a pipeline, by number.
    """

    n_steps: int
    recorded_ns: int
    actual_ns: int
    ideal_ns: int
    ratio: float
    unexplained_share: float
    ranks: tuple[SlowRanks, ...] = ()
    stages: tuple[SlowRanks, ...] = ()


@dataclass(frozen=True)
class CollectivesSummary:
    """The collectives of a job.

    Attributes:
        n: Number of matched collectives.
        matched_share: The share of all calls with other ranks that were matched, or None without
            any.
        unmatched: The other calls by reason.
        groups: Kinds of collectives by group, those with the most waiting first.
        slowdown: What differences between the ranks cost; None where too few collectives were
            matched.
        n_run_steps: Number of steps of the whole run in which it is known how late each rank was,
            recorded or not; None where that is not known.
    """

    n: int
    matched_share: float | None
    unmatched: tuple[UnmatchedCalls, ...] = ()
    groups: tuple[CollectiveGroup, ...] = ()
    slowdown: Slowdown | None = None
    n_run_steps: int | None = None


@dataclass(frozen=True)
class UnreadFile:
    """A file that is perhaps a rank's, and could not be read.

    Attributes:
        file: Its path.
        why: The error of the file, or the end of the process that read it.
    """

    file: str
    why: str
