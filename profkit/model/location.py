"""Where something happened, in the user's own code."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Frame:
    """A line of Python.

    Attributes:
        file: Path as the recording has it; absolute where profkit recorded it.
        line: Line number from 1. With ``precision`` ``"function"`` it is where the function begins.
        function: Name of the function, ``<module>`` at the top of a file.
        precision: ``"line"`` when the line itself is known; ``"function"`` when the recording
            only knows which function it was, as torch's own stacks do.
    """

    file: str
    line: int
    function: str
    precision: Literal["line", "function"] = "line"

    @property
    def location(self) -> "Location":
        """The same as the place of a finding."""
        return Location(self.file, self.line, self.function, precision=self.precision)


@dataclass(frozen=True)
class Location:
    """Where a finding is: the user's line first, then what ran there.

    Attributes:
        file: Path, or None when the recording has no stacks.
        line: Line number from 1, or None.
        function: The function's name, or None.
        op: The PyTorch operator, or None.
        module: The ``nn.Module``, or None.
        step: Name of the step, or None when it happens in several.
        precision: As in :class:`Frame`.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    op: str | None = None
    module: str | None = None
    step: str | None = None
    precision: Literal["line", "function"] = "line"

    @property
    def place(self) -> str:
        """``train.py:12``, or the operator where no line is known, or ``an unknown line``."""
        if self.file is None or self.line is None:
            return self.op or "an unknown line"
        name = self.file.replace("\\", "/").rsplit("/", 1)[-1]
        if self.precision == "function":
            return f"{self.function} ({name}:{self.line})"
        return f"{name}:{self.line}"
