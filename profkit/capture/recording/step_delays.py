"""Which recorded steps another program has disturbed, so that the report leaves them out.

A step of some milliseconds is shorter than the time for which the system gives a core to another
program. On a busy machine one of three recorded steps may then take ten times as long as the
others, and whatever it was doing seems to take most of the time. Where other steps had their core,
they say what the program does. Steps that are all disturbed alike are kept, and so are those of a
job's ranks, which are compared step by step.
"""

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Final

from profkit.capture.process import environment
from profkit.capture.process.cpu_time import CpuClock, UsedTime
from profkit.model.capture_info import CpuTime, HostThreads

MAX_DISTURBED_SHARE: Final = 0.1
"""A step is undisturbed if other programs took its thread's core for less of it."""
MIN_DISTURBED_SHARE: Final = 0.25
"""From this share on a step is left out, if another one is undisturbed."""


class StepDelays:
    """Measures the processor time of each recorded step.

    The methods are called by the thread itself, outside of the region of the step: to read the
    times of all threads takes some tenths of a millisecond.
    """

    def __init__(self) -> None:
        self.used: dict[str, UsedTime] = {}
        self._clock: CpuClock | None = None

    def begin(self) -> None:
        """Begin a recorded step, unless it is one of a rank of a job."""
        # By the time the recording is written the program may have left its process group.
        self._clock = None if environment.is_distributed() else CpuClock()

    def end(self, name: str) -> None:
        """End a step, if one has begun.

        Args:
            name: The name of its region.
        """
        clock, self._clock = self._clock, None
        used = None if clock is None else clock.measure()
        if used is not None:
            self.used[name] = used

    def drop(self) -> None:
        """Forget a step that does not end as one."""
        self._clock = None


def find_disturbed_steps(used: Mapping[str, UsedTime], threads: HostThreads) -> list[str]:
    """Find the steps to leave out.

    Args:
        used: The processor time of each step by the name of its region.
        threads: The threads and processes of the program, which are not the reason.
    """
    shares = {name: _disturbed_share(time.describe(), threads) for name, time in used.items()}
    if min(shares.values(), default=1.0) >= MAX_DISTURBED_SHARE:
        return []
    return [name for name, share in shares.items() if share >= MIN_DISTURBED_SHARE]


def _disturbed_share(cpu: CpuTime, threads: HostThreads) -> float:
    return cpu.delayed_by_others_ns(threads) / max(1, cpu.window_ns)


def add_kept(used: Mapping[str, UsedTime], left_out: list[str]) -> UsedTime:
    """Return the processor time of the steps that are not left out."""
    return reduce(add, (time for name, time in used.items() if name not in left_out))
