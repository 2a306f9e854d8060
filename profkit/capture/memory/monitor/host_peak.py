"""The highest resident memory of the process, and between which samples it was reached.

Samples are taken at the ends of steps, where what a step or a validation between steps has
allocated is free again. The system remembers the highest amount of the process: where it has risen
from one sample to the next, it was reached between them.
"""

from pathlib import Path
from typing import Final

from profkit.model.live_memory import HostPeak

_MIN_RATIO: Final = 1.25
"""A peak that is hardly above the memory at the ends of steps is that of the steps."""
_MIN_BYTES: Final = 64 << 20
"""What profkit itself may take between two steps while it searches the program's objects."""
_MIN_RISE: Final = 1.01
_KIB: Final = 1024


def read_peak_bytes() -> int | None:
    """Return the highest resident memory of this process so far; None if it is not known.

    ``ru_maxrss`` of ``getrusage`` would be that of the program that started this one, if it was
    higher then.

    Source: ``VmHWM`` in ``/proc/self/status``, proc(5).
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * _KIB
    except (OSError, StopIteration, ValueError, IndexError):
        return None


class HostPeaks:
    """Follows the highest resident memory from sample to sample."""

    def __init__(self) -> None:
        self._last_step: int | None = None
        self._peak_bytes = self._resident_bytes = 0
        self._reached: tuple[int, int | None] | None = None

    def note(self, step: int, resident_bytes: int | None) -> None:
        """Note the memory at the end of a step."""
        peak_bytes = read_peak_bytes()
        if peak_bytes is None or resident_bytes is None:
            return
        self._note_peak(peak_bytes, step)
        self._resident_bytes = max(self._resident_bytes, resident_bytes)
        self._last_step = step

    def skip(self) -> None:
        """Leave out a sample: a trace is being recorded, and a peak may be the recording's."""
        self._last_step = None

    def find(self, at_end: int | None) -> HostPeak | None:
        """Find the peak of the process, if it was far above the memory at the ends of steps.

        One before the first sample is the start of the program, and none.

        Args:
            at_end: The highest resident memory when monitoring ended.
        """
        if at_end is None or not self._resident_bytes:
            return None
        self._note_peak(at_end, None)
        lowest = max(_MIN_RATIO * self._resident_bytes, self._resident_bytes + _MIN_BYTES)
        if self._reached is None or self._peak_bytes < lowest:
            return None
        return HostPeak(self._peak_bytes, self._resident_bytes, *self._reached)

    def _note_peak(self, peak_bytes: int, until_step: int | None) -> None:
        """Note the highest memory so far; a little more is still the peak that was there before."""
        if peak_bytes > _MIN_RISE * self._peak_bytes:
            self._reached = None if self._last_step is None else (self._last_step, until_step)
        self._peak_bytes = max(self._peak_bytes, peak_bytes)
