"""Which steps of a loop are recorded, and which one is recorded for its source lines.

The terms are those of ``torch.profiler.schedule``: a cycle waits, warms up, and is active. Python
stacks make short steps about twice as long, so the active steps are recorded without them, and
source lines come from one other step that is recorded with stacks. By default that is the last but
one of the warm-up, so that an unrecorded step follows and a loader's queue fills up again; with a
warm-up of one step, it is that one; without a warm-up, it is the first step after the active ones.

``profkit run`` records that step last, one step after the active ones: what it costs is known by
then, and a program that ends early has its recorded steps.
"""

from enum import Enum
from typing import Final

from profkit.dataclass import dataclass
from profkit.errors import UsageError

DEFAULT_WAIT: Final = 2
DEFAULT_WARMUP: Final = 2
DEFAULT_ACTIVE: Final = 3


class Phase(Enum):
    """What happens during a step."""

    OFF = "off"
    LINES = "lines"
    """Recorded with stacks, only for source lines."""
    READY = "ready"
    """Not recorded; the profiler is prepared, so that its start does not slow down a step."""
    RECORD = "record"
    DRAIN = "drain"
    """Not recorded; what other threads have begun in the recorded steps ends."""
    DRAIN_LINES = "drain lines"
    """The same after the step with stacks."""
    REST = "rest"
    """Not recorded; the recorded steps wait for the one with stacks."""


@dataclass(frozen=True)
class Schedule:
    """Cycles over the steps of a loop.

    Attributes:
        wait: Steps at the start of a cycle that are not recorded.
        warmup: Steps after those; source lines come from one of them.
        active: Steps that are recorded, or None for all that follow.
        repeat: Cycles; 0 for no limit.
        lines_last: Whether the step with stacks follows the active ones, after a step of rest.
    """

    wait: int = 0
    warmup: int = 0
    active: int | None = None
    repeat: int = 1
    lines_last: bool = False

    def __post_init__(self) -> None:
        if min(self.wait, self.warmup, self.repeat) < 0:
            raise UsageError("wait, warmup and repeat must be 0 or more.")
        if self.active is not None and self.active < 1:
            raise UsageError("active must be 1 or more, or None for all steps.")

    def is_over(self, cycle: int) -> bool:
        """Return whether a cycle (from 0) comes after the last one."""
        return self.active is not None and self.repeat > 0 and cycle >= self.repeat

    def has_lines_step(self) -> bool:
        """Return whether there is an otherwise unrecorded step to take source lines from."""
        return self.warmup > 0 or self.active is not None

    @property
    def first_active(self) -> int:
        """Return the first recorded step of the first cycle."""
        return self.wait + self.warmup

    def active_left(self, step: int) -> int:
        """Return how many steps of the first cycle are to be recorded from a recorded one on."""
        return 0 if self.active is None else self.first_active + self.active - step

    def find_phase(self, step: int, *, lines: bool) -> tuple[int, Phase]:
        """Find the cycle and the phase of a step, both from 0.

        Args:
            lines: Whether a step of the first cycle is recorded for source lines.
        """
        lines = lines and self.has_lines_step()
        if self.active is None:
            return 0, self._phase(step, lines=lines)

        length = self.wait + self.warmup + self.active
        first_length = length + (self._n_after_active() if lines else 0)
        if step < first_length:
            return 0, self._phase(step, lines=lines)

        # Source lines are the same in each cycle: later ones are shorter by the step with stacks.
        cycle, step_in_cycle = divmod(step - first_length, length)
        cycle += 1
        if self.repeat and cycle >= self.repeat:
            return cycle, Phase.OFF
        return cycle, self._phase(step_in_cycle, lines=False)

    def _n_after_active(self) -> int:
        """Count the steps that the first cycle has after the active ones, for source lines."""
        if self.lines_last:
            return 2
        return 1 if self.warmup == 0 else 0

    def _phase(self, step_in_cycle: int, *, lines: bool) -> Phase:
        if step_in_cycle < self.first_active:
            # The last but one of the warm-up, so that an unrecorded step follows it.
            is_lines = step_in_cycle == self.wait + max(self.warmup - 2, 0)
            if lines and is_lines and not self.lines_last:
                return Phase.LINES
            is_last = step_in_cycle == self.first_active - 1
            return Phase.READY if is_last and self.warmup else Phase.OFF

        if self.active is None or step_in_cycle < self.first_active + self.active:
            return Phase.RECORD
        is_rest = self.lines_last and step_in_cycle == self.first_active + self.active
        return Phase.REST if is_rest else Phase.LINES


DEFAULT_SCHEDULE: Final = Schedule(DEFAULT_WAIT, DEFAULT_WARMUP, DEFAULT_ACTIVE)
"""The schedule of ``profkit run`` without options."""
