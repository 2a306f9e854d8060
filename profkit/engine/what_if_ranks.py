"""Predicts the time of a job with changes of its ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final

import numpy as np

from profkit.arguments import is_number
from profkit.dataclass import dataclass
from profkit.engine.job_context import JobContext
from profkit.engine.needs import WHAT_IF_RANKS, first_unmet
from profkit.engine.wording import rank_list
from profkit.errors import UsageError
from profkit.index.ranks.job_replay import RankChange
from profkit.model.what_if import JobCase, JobPrediction, RanksChange

_MIN_SHARE: Final = 0.001
"""Single ranks that cost less of the step are not among the usual changes."""


@dataclass(frozen=True)
class RanksChoice:
    """Changes of the ranks of a job, all of them made at once.

    Attributes:
        ranks: Ranks that keep up with the median of the others.
        stages: Stages of the pipeline whose ranks take the mean of all.
        even: Whether all ranks take their mean.
        waiting: Whether ranks wait for each other.
        bandwidth: By what the bandwidth of collectives is multiplied, by a pattern of their kind,
            group or use; an empty pattern is all.
    """

    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    even: bool = False
    waiting: bool = True
    bandwidth: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_any(self) -> bool:
        """Return whether anything is changed."""
        return self != RanksChoice()


def predict_job(job: JobContext, choice: RanksChoice) -> JobPrediction:
    """Predict some changes at once or, if none are chosen, each usual change alone.

    Raises:
        UsageError: Too few collectives were matched, there is no such rank or stage, or a pattern
            matches nothing.
    """
    unmet = first_unmet(job, (WHAT_IF_RANKS,))
    if unmet is not None:
        raise UsageError(f"{job.path}: {unmet.reason}", unmet.remedy)

    what_if = job.what_if
    chosen = [_build_changes(job, choice)] if choice.is_any else _build_usual_changes(job)
    lengths = what_if.replay.lengths_ns([change for _, change in chosen]).tolist()

    n = max(1, what_if.replay.n_steps)
    before_ns = round(what_if.actual_ns / n)
    cases = [
        JobCase(tuple(named), round(length / n), before_ns - round(length / n))
        for (named, _), length in zip(chosen, lengths, strict=True)
    ]

    # Usual changes are a list of suggestions, of which the small ones are left out.
    if not choice.is_any:
        least_ns = _MIN_SHARE * before_ns
        cases = [
            case for case in cases if case.changes[0].kind != "rank" or case.saving_ns >= least_ns
        ]
        cases.sort(key=lambda case: -case.saving_ns)

    return JobPrediction(
        path=job.path,
        n_steps=what_if.replay.n_steps,
        ranks=tuple(_numbers(job)),
        before_ns=before_ns,
        unexplained_share=round(max(0.0, 1 - what_if.actual_ns / what_if.recorded_ns), 4),
        matched_share=job.matches.matched_share or 0.0,
        cases=tuple(cases),
    )


def check_bandwidth(bandwidth: Mapping[str, Any] | Any) -> dict[str, float]:  # noqa: ANN401  (checked here)
    """Return factors by pattern; a number is for all collectives, None for none.

    Raises:
        UsageError: A factor is not a number above 0.
    """
    if bandwidth is None:
        return {}

    by_pattern = bandwidth if isinstance(bandwidth, Mapping) else {"": bandwidth}
    for pattern, factor in by_pattern.items():
        if not is_number(factor) or not 0 < factor < inf:
            of = f" of {pattern!r}" if pattern else ""
            message = f"The bandwidth{of} is multiplied by {factor!r}, which is no number above 0."
            raise UsageError(message, "Write 2 for twice the bandwidth.")
    return {str(pattern): float(factor) for pattern, factor in by_pattern.items()}


def _numbers(job: JobContext) -> list[int]:
    return [report.rank for report in job.ranks]


def _build_usual_changes(job: JobContext) -> list[tuple[list[RanksChange], RankChange]]:
    """Build each usual change: of one rank, of a stage, of all, of the transfers."""
    numbers = _numbers(job)
    choices = [
        *(RanksChoice(ranks=(numbers[rank],)) for rank in job.what_if.candidates),
        *(RanksChoice(stages=(stage,)) for stage in range(len(job.what_if.stages))),
        RanksChoice(even=True),
        RanksChoice(waiting=False),
        RanksChoice(bandwidth={"": 2.0}),
    ]
    return [_build_changes(job, choice) for choice in choices]


def _build_changes(job: JobContext, choice: RanksChoice) -> tuple[list[RanksChange], RankChange]:
    """Return changes by name, and for the replay."""
    numbers, stages = _numbers(job), job.what_if.stages
    medians = _places(
        choice.ranks, numbers, f"{job.path} has no rank", f"of rank {rank_list(numbers)}"
    )
    named = [RanksChange("rank", (rank,)) for rank in dict.fromkeys(choice.ranks)]

    hint = f"of stage 0 to {len(stages) - 1}" if stages else "of no pipeline"
    stage_numbers = _places(choice.stages, range(len(stages)), f"{job.path} has no stage", hint)
    means = [rank for stage in stage_numbers for rank in stages[stage]]
    for stage in stage_numbers:
        members = tuple(numbers[rank] for rank in stages[stage])
        named.append(RanksChange("stage", members, stage))

    if choice.even:
        named.append(RanksChange("even", tuple(numbers)))
        means = list(range(len(numbers)))
    if not choice.waiting:
        named.append(RanksChange("no-waiting"))

    bandwidths = []
    for pattern, factor in choice.bandwidth.items():
        matching = _matching(job, pattern)
        if not matching:
            raise UsageError(
                f"No matched collective of {job.path} is of a kind or group named {pattern!r}.",
                f"There are {', '.join(sorted(_names(job)))}; * stands for any characters.",
            )
        bandwidths.append((matching, factor))
        named.append(
            RanksChange("bandwidth", target=pattern, factor=factor, n_collectives=len(matching))
        )

    change = RankChange(
        ranks=tuple(means),
        medians=tuple(medians),
        bandwidths=tuple(bandwidths),
        waits=choice.waiting,
    )
    return named, change


def _places(wanted: Iterable[int], numbers: Sequence[int], missing: str, hint: str) -> list[int]:
    """Return the index of each number, once.

    Raises:
        UsageError: One is not there.
    """
    places = []
    for number in dict.fromkeys(wanted):
        if number not in numbers:
            raise UsageError(f"{missing} {number}.", f"The recordings are {hint}.")
        places.append(numbers.index(number))
    return places


def _names_of(job: JobContext) -> list[tuple[str, ...]]:
    """Return the kind, and the name and use of the group, of each matched collective."""
    matches = job.matches
    calls, leader = matches.calls, matches.members[matches.first]
    return [
        (calls.kinds[kind], calls.groups[group].name, calls.groups[group].description)
        for kind, group in zip(
            calls.kind[leader].tolist(), calls.group[leader].tolist(), strict=True
        )
    ]


def _names(job: JobContext) -> set[str]:
    return {name for names in _names_of(job) for name in names if name}


def _matching(job: JobContext, pattern: str) -> tuple[int, ...]:
    """Return the numbers of the matched collectives that a pattern names."""
    is_named = {name: fnmatchcase(name, pattern) for name in _names(job)}
    is_match = np.array(
        [not pattern or any(is_named.get(n, False) for n in names) for names in _names_of(job)],
        dtype=np.bool_,
    )
    return tuple(np.flatnonzero(is_match).tolist())
