"""Which stage of a pipeline the others wait for, by what the stages take themselves.

Ranks of a pipeline do not call the same collectives, so that no call tells who is late. A stage is
slow if it takes longer than the others in its own time, in which it waits for nobody. Where the
processor time of all steps of a run is known, it tells more work from other causes: a few recorded
steps are disturbed by programs that take the cores.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.ranks.run_lateness import is_longer_than_chance
from profkit.model.events import Float64s

_USUAL: Final = 0.5
"""Part of the mean extra time that a step has to have to be like the others."""
_MIN_STEADY: Final = 0.7
"""Share of the recorded steps that have to be like the others."""
_MIN_EXCESS: Final = 0.2
"""By how much of the mean of all stages at least, as for the longest rank in other tools."""
_DISTURBED_PART: Final = 0.15
"""The part of the time without a core by which a stage may seem slow: its waits end late, too."""


@dataclass(frozen=True)
class SlowStage:
    """A stage of a pipeline that takes longer than the others. Times are means per step.

    Attributes:
        stage: Its number.
        ranks: Its ranks, by index.
        own_ns: The own time of its ranks.
        mean_ns: The mean of all stages.
        excess_ns: By how much it is longer than the median of the other stages.
        has_more_work: Whether its ranks compute longer, by their processor time in the whole run;
            None where that is not known.
    """

    stage: int
    ranks: tuple[int, ...]
    own_ns: float
    mean_ns: float
    excess_ns: float
    has_more_work: bool | None = None


def find_slow_stage(
    stages: Sequence[Sequence[int]],
    own_ns: Float64s,
    disturbed_ns: Float64s | None = None,
    cpu_ns: Float64s | None = None,
) -> SlowStage | None:
    """Find the stage that takes longer than the others in most steps.

    Args:
        stages: The ranks of each stage, by index.
        own_ns: Own time of each rank in the recorded steps. Shape ``(ranks, s)``.
        disturbed_ns: The part of it in which the rank had no core, or None.
        cpu_ns: Processor time of each rank in all steps of the run, or None. Shape ``(ranks, n)``.
    """
    if len(stages) < 2 or not own_ns.shape[1]:  # noqa: PLR2004  (none to compare)
        return None

    if cpu_ns is not None:
        working = _find_longest(stages, cpu_ns, cpu_ns)
        if working.is_longer and is_longer_than_chance(working.excess_ns, len(stages)):
            return working.describe(stages, has_more_work=True)

    disturbed = np.zeros_like(own_ns) if disturbed_ns is None else disturbed_ns
    longest = _find_longest(stages, own_ns, own_ns - disturbed)
    noise_ns = _DISTURBED_PART * float(disturbed.mean())
    if longest.is_longer and longest.is_steady and longest.usual_excess_ns >= noise_ns:
        return longest.describe(stages, has_more_work=None if cpu_ns is None else False)
    return None


@dataclass(frozen=True)
class _Longest:
    """The stage that takes longest.

    Attributes:
        stage: Its number.
        by_stage_ns: The time of each stage, mean of all steps. Shape ``(stages,)``.
        excess_ns: By how much it takes longer than the median of the others. Shape ``(s,)``.
    """

    stage: int
    by_stage_ns: Float64s
    excess_ns: Float64s

    @property
    def usual_excess_ns(self) -> float:
        """Return by how much it takes longer in its usual step."""
        return float(np.median(self.excess_ns))

    @property
    def is_steady(self) -> bool:
        """Return whether most steps are like the usual one."""
        is_usual = self.excess_ns >= _USUAL * max(1.0, float(self.excess_ns.mean()))
        return float(is_usual.mean()) >= _MIN_STEADY

    @property
    def is_longer(self) -> bool:
        """Return whether it is so by more than stages with equal work differ."""
        return self.usual_excess_ns >= max(1.0, _MIN_EXCESS * float(self.by_stage_ns.mean()))

    def describe(self, stages: Sequence[Sequence[int]], *, has_more_work: bool | None) -> SlowStage:
        """Describe it for a report."""
        return SlowStage(
            self.stage,
            tuple(stages[self.stage]),
            float(self.by_stage_ns[self.stage]),
            float(self.by_stage_ns.mean()),
            self.usual_excess_ns,
            has_more_work,
        )


def _find_longest(
    stages: Sequence[Sequence[int]], times_ns: Float64s, fair_ns: Float64s
) -> _Longest:
    """Find the stage that takes longest.

    Args:
        times_ns: The time of each rank by step.
        fair_ns: The part of it that counts.
    """
    by_stage_ns = np.array([times_ns[list(ranks)].mean() for ranks in stages])
    by_step_ns = np.array([fair_ns[list(ranks)].mean(axis=0) for ranks in stages])

    excess_ns = _subtract_others(by_step_ns)
    stage = int(np.median(excess_ns, axis=1).argmax())
    return _Longest(stage, by_stage_ns, excess_ns[stage])


def _subtract_others(by_stage_ns: Float64s) -> Float64s:
    """Return by how much each stage is above the median of the others. Shape ``(stages, s)``."""
    others = [np.median(np.delete(by_stage_ns, i, axis=0), axis=0) for i in range(len(by_stage_ns))]
    return np.asarray(by_stage_ns - np.array(others))
