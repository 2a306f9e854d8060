"""The window of a recording: from its start until it is muted or stopped.

In a muted recording, nothing is collected for the last part of what torch takes for the window,
which would look like idle time.
"""

import re
import time
from pathlib import Path
from typing import Final

from profkit.capture.process.cpu_time import CpuClock
from profkit.model.capture_info import CpuTime
from profkit.readers.kineto import keys

_BASE_TIME: Final = re.compile(rf'"{keys.BASE_TIME}": (\d+)')
_WINDOW_SPAN: Final = re.compile(
    r'("cat": "Trace",[^{}]*?"ts": (?=([\d.]+))[\d.]+,\s*"dur": )[\d.]+'
)
"""The one event of this category. Its name comes before its times since torch 2.13, after them
before."""
_WINDOW_END: Final = re.compile(r'("name": "Record Window End"[^{}]*?"ts": )[\d.]+')


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


def end_window_at(path: Path, end_ns: int) -> None:
    """Let the window of an exported trace end at a time, after which nothing was collected.

    Kineto writes the window at the end of the file: from the start of its profiler to the stop.

    Args:
        end_ns: Nanoseconds since 1970.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape")

    # Times in the file are microseconds since its base time, if it has one.
    base = _BASE_TIME.search(text)
    base_ns = 0 if base is None else int(base[1])
    end_us = (end_ns - base_ns) / 1000

    def with_new_duration(span: re.Match[str]) -> str:
        return f"{span[1]}{max(0.0, end_us - float(span[2])):.3f}"

    text = _WINDOW_SPAN.sub(with_new_duration, text)
    text = _WINDOW_END.sub(lambda mark: f"{mark[1]}{end_us:.3f}", text)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
