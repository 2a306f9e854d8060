"""The predicted effect of changes: the result of :func:`profkit.what_if`."""

from collections.abc import Mapping
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.critical_path import PathKindName

SCHEMA: Final = "profkit.what-if/1"
EACH_SCHEMA: Final = "profkit.what-if-each/1"
JOB_SCHEMA: Final = "profkit.what-if-ranks/1"


@dataclass(frozen=True)
class AppliedChange:
    """One change of a prediction, and how much of the recording it applies to.

    Attributes:
        kind: ``remove`` a rule's findings, ``scale`` what a pattern matches, launch by ``graph``,
            or no ``data-wait``.
        target: The rule with its line, or the pattern; empty for the other kinds.
        factor: The factor of the time, for ``scale``; else 0.
        matched: How many findings, events, launches or waits it applies to, by kind.
    """

    kind: Literal["remove", "scale", "graph", "data-wait"]
    target: str
    factor: float
    matched: Mapping[str, int]


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a step with some changes, by replay of the recording.

    Times are nanoseconds per step: the mean of all steps, each from its start, or the completion of
    the one before if that is later, to its completion. Without steps they are of the whole
    recording. Without changes they agree with the report's critical path.

    Attributes:
        path: The recording.
        n_steps: Number of steps; 0 without steps.
        changes: The changes, all made at once.
        before_ns: As recorded.
        after_ns: Predicted, if all recorded latencies stay.
        min_after_ns: Predicted, if latencies are hidden behind other work where they can be.
        saving_ns: ``before_ns`` less ``after_ns``; negative if it would take longer.
        max_saving_ns: ``before_ns`` less ``min_after_ns``.
        critical_path_before_ns: Time of the recorded critical path by kind, as in
            :class:`~profkit.model.critical_path.PathPart`. The sum is ``before_ns``.
        critical_path_after_ns: Time of the critical path with the changes, by kind. The sum is
            ``after_ns``.
        unexplained_share: Share of the recorded critical path without a known cause.
        basis: ``replay``, or ``upper-bound`` if too much is unexplained: then ``max_saving_ns`` is
            the most that can be expected.
    """

    path: str
    n_steps: int
    changes: tuple[AppliedChange, ...]
    before_ns: int
    after_ns: int
    min_after_ns: int
    saving_ns: int
    max_saving_ns: int
    critical_path_before_ns: Mapping[PathKindName, int]
    critical_path_after_ns: Mapping[PathKindName, int]
    unexplained_share: float
    basis: Literal["replay", "upper-bound"]

    @property
    def is_upper_bound(self) -> bool:
        """Return whether the savings are only an upper bound."""
        return self.basis == "upper-bound"


@dataclass(frozen=True)
class PredictedTime:
    """A predicted time per step, or of the recording without steps.

    Attributes:
        after_ns: If all recorded latencies stay.
        min_after_ns: If latencies are hidden behind other work where they can be.
    """

    after_ns: int
    min_after_ns: int


@dataclass(frozen=True)
class Combinations:
    """Predicted times with combinations of some changes.

    Attributes:
        n_changes: Number of changes.
        times: By combination: bit ``i`` of the number stands for change ``i``. The time with a
            combination that is not there is between that with all changes and the shortest one with
            some of its changes.
    """

    n_changes: int
    times: Mapping[int, PredictedTime]


@dataclass(frozen=True)
class RanksChange:
    """One change of the ranks of a job.

    Attributes:
        kind: A ``rank`` keeps up with the median of the others; a ``stage`` of a pipeline, or all
            ranks (``even``), take the mean of all; ``no-waiting``: no rank waits for another;
            ``bandwidth``: transfers are faster.
        ranks: The ranks that change; empty for ``no-waiting`` and ``bandwidth``.
        stage: The number of the stage, or None.
        target: The pattern of the collectives whose bandwidth changes, or empty for all.
        factor: By what their bandwidth is multiplied; else 1.
        n_collectives: How many matched collectives that are; else 0.
    """

    kind: Literal["rank", "stage", "even", "no-waiting", "bandwidth"]
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    target: str = ""
    factor: float = 1.0
    n_collectives: int = 0


@dataclass(frozen=True)
class JobCase:
    """The predicted time of a job with some changes, all made at once. Times as in the job's.

    Attributes:
        changes: The changes.
        after_ns: Predicted.
        saving_ns: ``before_ns`` of the job less ``after_ns``; negative if it would take longer.
    """

    changes: tuple[RanksChange, ...]
    after_ns: int
    saving_ns: int


@dataclass(frozen=True)
class JobPrediction:
    """The predicted time of a job's step with changes of its ranks, by replay of all ranks.

    Times are nanoseconds per step: from the start of the first common step on the rank that begins
    last to the end of the last one on the rank that ends last, divided by their number. Without
    steps they are of the whole recording. The replay is the same as for the report's
    :class:`~profkit.model.job.Slowdown`.

    Attributes:
        path: The folder of the recordings.
        n_steps: Number of steps; 0 without steps.
        ranks: The recorded ranks.
        before_ns: As recorded, without idle time for which the recording has no reason.
        unexplained_share: That idle time, as a share of what the job took.
        matched_share: The share of the ranks' collective calls that were matched. Others last as
            long as recorded, whatever changes.
        cases: The chosen changes at once, or if none were chosen, each usual change alone.
    """

    path: str
    n_steps: int
    ranks: tuple[int, ...]
    before_ns: int
    unexplained_share: float
    matched_share: float
    cases: tuple[JobCase, ...]
