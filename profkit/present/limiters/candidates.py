"""Candidates for the first sentence of a report, and the choice of those that a reader sees."""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from profkit.dataclass import dataclass

MAJORITY: Final = 0.5
"""A cause with this share of the time is what the program mainly does."""


class Cause(Enum):
    """What can take most of a program's time."""

    DEVICE = auto()
    """A device works, which is what it is there for."""
    IDLE = auto()
    """The device waits for the host."""
    UNRECORDED = auto()
    """The device works on something that is not in the recording."""
    OPERATORS = auto()
    FUNCTION = auto()
    """The host is in a known function outside of operators."""
    LIBRARY = auto()
    """The host is in a library's Python, around the operators that it runs."""
    PYTHON = auto()
    """The host is in Python outside of operators, and no function is known."""
    DATA = auto()
    RESTARTS = auto()
    """The run waits for a loader's workers to start anew, between the recorded steps."""
    COMMUNICATION = auto()
    COPIES = auto()
    WAITING = auto()
    """The host waits for something that the recording does not show."""
    COLD_START = auto()
    """Work that happens once, at the beginning of the process."""
    OTHER_STEPS = auto()
    """Steps of another kind than most, which are no first ones."""
    CAPTURE = auto()
    """The device waits while graphs are captured, which happens once."""


_APART: Final = (Cause.COLD_START, Cause.OTHER_STEPS)
"""What the usual steps do not contain."""
_CERTAINTY: Final = {
    Cause.FUNCTION: 0.95, Cause.LIBRARY: 0.9, Cause.PYTHON: 0.9, Cause.OPERATORS: 0.9
}  # fmt: skip
"""A function was sampled, and is known with an error. Python and operators name no cause by
themselves: another cause that takes nearly as much says more."""


@dataclass(frozen=True)
class Candidate:
    """A sentence that may begin the headline.

    Attributes:
        cause: What takes the time.
        share: The share of the steps, or of the recording, that it takes.
        sentence: What a reader sees.
    """

    cause: Cause
    share: float
    sentence: str

    def in_longer_steps(self, share: float) -> "Candidate":
        """Return this with its share of steps of which the recorded ones show that share alone."""
        return replace(self, share=self.share * share)

    @property
    def score(self) -> float:
        """The share, less where the cause is less certain or says less."""
        return self.share * _CERTAINTY.get(self.cause, 1.0)


def choose(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidate with the largest share of the time; none without candidates.

    Where that is work that was not recorded, the next one follows: it is what a reader can change.
    A cold start that takes most of the time stands before what limits the program, and so do steps
    of another kind, as they are no part of any mean.
    """
    ranked = sorted(candidates, key=lambda candidate: -candidate.score)
    apart = [candidate for candidate in ranked if candidate.cause in _APART]
    lasting = [candidate for candidate in ranked if candidate.cause not in _APART]
    is_incomplete = bool(lasting) and lasting[0].cause is Cause.UNRECORDED
    limiters = lasting[: 2 if is_incomplete else 1]
    return [*(candidate for candidate in apart if candidate.share >= MAJORITY), *limiters]
