"""Which steps of a loop are recorded, and which one is recorded for its source lines.

The terms are those of ``torch.profiler.schedule``: a cycle waits, warms up, and is active. Python
stacks make short steps about twice as long, so the active steps are recorded without them, and
source lines come from one warm-up step that is recorded with stacks. It is the last but one, so
that an unrecorded step follows and a loader's queue fills up again; with a warm-up of one step, it
is that one; without a warm-up, it is the first step after the active ones.
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


@dataclass(frozen=True)
class Schedule:
    """Cycles over the steps of a loop.

    Attributes:
        wait: Steps at the start of a cycle that are not recorded.
        warmup: Steps after those; source lines come from one of them.
        active: Steps that are recorded, or None for all that follow.
        repeat: Cycles; 0 for no limit.
    """

    wait: int = 0
    warmup: int = 0
    active: int | None = None
    repeat: int = 1

    def __post_init__(self) -> None:
        if min(self.wait, self.warmup, self.repeat) < 0:
            raise UsageError("wait, warmup and repeat must be 0 or more.")
        if self.active is not None and self.active < 1:
            raise UsageError("active must be 1 or more, or None for all steps.")

    def is_over(self, cycle: int) -> bool:
        """Whether a cycle (from 0) comes after the last one."""
        return self.active is not None and self.repeat > 0 and cycle >= self.repeat

    def has_lines_step(self) -> bool:
        """Whether there is an otherwise unrecorded step to take source lines from."""
        return self.warmup > 0 or self.active is not None

    def phase_of(self, step: int, *, lines: bool) -> tuple[int, Phase]:
        """The cycle and the phase of a step, both from 0.

        Args:
            lines: Whether a step of the first cycle is recorded for source lines.
        """
        lines = lines and self.has_lines_step()
        if self.active is None:
            return 0, self._phase(step, lines=lines)
        length = self.wait + self.warmup + self.active
        first_length = length + (1 if lines and self.warmup == 0 else 0)
        if step < first_length:
            return 0, self._phase(step, lines=lines)
        cycle, step_in_cycle = divmod(step - first_length, length)
        cycle += 1
        if self.repeat and cycle >= self.repeat:
            return cycle, Phase.OFF
        return cycle, self._phase(step_in_cycle, lines=False)

    def _phase(self, step_in_cycle: int, *, lines: bool) -> Phase:
        first_active = self.wait + self.warmup
        if step_in_cycle < first_active:
            if lines and step_in_cycle == self.wait + max(self.warmup - 2, 0):
                return Phase.LINES
            is_last = step_in_cycle == first_active - 1
            return Phase.READY if is_last and self.warmup else Phase.OFF
        if self.active is not None and step_in_cycle >= first_active + self.active:
            return Phase.LINES
        return Phase.RECORD


DEFAULT_SCHEDULE: Final = Schedule(DEFAULT_WAIT, DEFAULT_WARMUP, DEFAULT_ACTIVE)
"""That of ``profkit run``."""
