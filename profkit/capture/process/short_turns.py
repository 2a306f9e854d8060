"""Short turns of Python's threads, while stacks are sampled: a switch interval of the process.

A thread that waits for its turn has to wait for the switch interval, of 5 ms by default. The
program may set another interval at any time, and keeps that.

Source: ``sys.setswitchinterval`` in Python's documentation; ``take_gil`` in CPython's
``Python/ceval_gil.c``.
"""

import sys
from typing import Final

SWITCH_S: Final = 0.00005
_MICROSECOND: Final = 1e-6
"""Python's resolution of the switch interval."""


class _ShortTurns:
    """Short turns of this process, which end with the interval that they began with."""

    def __init__(self) -> None:
        self._program_s = 0.0

    def begin(self) -> None:
        """Shorten the program's switch interval, unless that was done or it is as short."""
        now_s = sys.getswitchinterval()
        if not self._program_s and now_s > SWITCH_S:
            self._program_s = now_s
            sys.setswitchinterval(SWITCH_S)

    def restore(self) -> None:
        """Restore the program's switch interval, unless the program has set another meanwhile."""
        if self._program_s:
            if abs(sys.getswitchinterval() - SWITCH_S) < _MICROSECOND:
                sys.setswitchinterval(self._program_s)
            self._program_s = 0.0


_turns: Final = _ShortTurns()
begin: Final = _turns.begin
restore: Final = _turns.restore
