"""Source locations: Python frames, and where findings occur."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Frame:
    """A Python stack frame.

    Attributes:
        file: Path as recorded; absolute where profkit recorded it.
        line: Line number from 1. With ``precision`` ``"function"``, that of the definition.
        function: Name of the function; ``<module>`` at the top level of a file.
        precision: ``"line"`` where the executed line is known; ``"function"`` where the recording
            has only the function, as in stacks of torch.
    """

    file: str
    line: int
    function: str
    precision: Literal["line", "function"] = "line"

    @property
    def location(self) -> "Location":
        """The frame as the location of a finding."""
        return Location(self.file, self.line, self.function, precision=self.precision)


@dataclass(frozen=True)
class Location:
    """Where a finding occurs: the source line, and what ran there.

    Attributes:
        file: Path, or None without stacks.
        line: Line number from 1, or None.
        function: Name of the function, or None.
        op: The PyTorch operator, or None.
        module: The ``nn.Module``, or None.
        step: Name of the step, or None where it occurs in several.
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
        """``train.py:12``; without a line the operator, or ``an unrecorded source line``."""
        if self.file is None or self.line is None:
            return self.op or "an unrecorded source line"
        name = self.file.replace("\\", "/").rsplit("/", 1)[-1]
        if self.precision == "function":
            return f"{self.function} ({name}:{self.line})"
        return f"{name}:{self.line}"
