"""The window of a recording: from its start until it is muted or stopped."""

import time

from profkit.capture.process.cpu_time import CpuClock
from profkit.model.capture_info import CpuTime


class RecordedWindow:
    """Measures one window, from its creation on.

    Attributes:
        began_ns: When it began, on the clock of ``time.perf_counter_ns``.
        length_ns: Its duration, once it has ended.
        cpu: Processor time spent in it, once it has ended; None if another thread has ended it.
        muted_at_ns: When it was muted, in nanoseconds since 1970, or 0.
        stopped_at_ns: When torch's profiler was stopped, in nanoseconds since 1970, or 0.
    """

    def __init__(self) -> None:
        self.length_ns = 0
        self.cpu: CpuTime | None = None
        self.muted_at_ns = 0
        self.stopped_at_ns = 0
        self._cpu_clock = CpuClock()
        self.began_ns = time.perf_counter_ns()

    def end(self, ended_ns: int) -> None:
        """End the window.

        Args:
            ended_ns: The time on the clock of ``time.perf_counter_ns``.
        """
        self.length_ns = ended_ns - self.began_ns
        self.cpu = self._cpu_clock.read()
