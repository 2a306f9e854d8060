"""Which step of a loop is recorded, which lends its lines, and which is left alone.

The words are those of ``torch.profiler.schedule``: a cycle waits, warms up, and is active. Python
stacks make small steps about twice as long, so the active steps are recorded without them. One
step of the warm-up is recorded with stacks and lends its lines: the last but one, so that a plain
step lies between and a loader's queue is as full as it always is; with a warm-up of one step, that
one; without a warm-up, the first step after the active ones.
"""

from dataclasses import dataclass
from enum import Enum

from profkit.errors import UsageError


class Phase(Enum):
    """What happens during a step."""

    OFF = "off"
    LEND = "lend"
    """Recorded with stacks, for its lines alone."""
    READY = "ready"
    """Not recorded; the profiler is prepared, so that its start does not fall into a step."""
    RECORD = "record"


@dataclass(frozen=True)
class Schedule:
    """Cycles over the steps of a loop.

    Attributes:
        wait: Steps at the start of a cycle that are left alone.
        warmup: Steps that follow; one of them lends its lines.
        active: Steps that are recorded, or None for all that come.
        repeat: Cycles; 0 for as many as there are.
    """

    wait: int = 0
    warmup: int = 0
    active: int | None = None
    repeat: int = 1

    def __post_init__(self) -> None:
        if min(self.wait, self.warmup, self.repeat) < 0:
            raise UsageError("wait, warmup and repeat count steps and cycles: 0 or more each.")
        if self.active is not None and self.active < 1:
            raise UsageError("active counts the steps to record: 1 or more, or None for all.")

    def is_over(self, cycle: int) -> bool:
        """Whether a cycle comes after the last one.

        Args:
            cycle: Its number, from 0.
        """
        return self.active is not None and self.repeat > 0 and cycle >= self.repeat

    def can_lend(self) -> bool:
        """Whether a step besides the recorded ones can lend its lines."""
        return self.warmup > 0 or self.active is not None

    def place(self, step: int, *, lend: bool) -> tuple[int, Phase]:
        """The cycle and the phase of a step.

        Args:
            step: The step's number, from 0.
            lend: Whether lines are wanted from a step of the first cycle.
        """
        lend = lend and self.can_lend()
        if self.active is None:
            return 0, self._phase(step, lend=lend)
        plain = self.wait + self.warmup + self.active
        first = plain + (1 if lend and self.warmup == 0 else 0)
        if step < first:
            return 0, self._phase(step, lend=lend)
        cycle, within = divmod(step - first, plain)
        cycle += 1
        if self.repeat and cycle >= self.repeat:
            return cycle, Phase.OFF
        return cycle, self._phase(within, lend=False)

    def _phase(self, within: int, *, lend: bool) -> Phase:
        """The phase of a step counted from the start of its cycle."""
        warm = self.wait + self.warmup
        if within < warm:
            lender = self.wait + max(self.warmup - 2, 0)
            if lend and within == lender:
                return Phase.LEND
            return Phase.READY if within == warm - 1 and self.warmup else Phase.OFF
        if self.active is not None and within >= warm + self.active:
            return Phase.LEND
        return Phase.RECORD
