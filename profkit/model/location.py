"""Source locations: Python frames, and where findings occur."""

from collections.abc import Iterable
from typing import Final, Literal

from profkit.dataclass import dataclass

NO_SOURCE_LINE: Final = "source line not recorded"
"""In place of a source line, in every format."""

MODULE_LEVEL: Final = "<module>"
"""The function of a frame at the top level of a file."""

COMPREHENSIONS: Final = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""The functions of frames that a reader takes for a part of the function around them."""


def numbered_line(file: str, line: int | None) -> str:
    """Return ``train.py:12``, or the file alone if the line is not known."""
    return file if line is None else f"{file}:{line}"


def base_name(path: str) -> str:
    """Return the last part of a path of any system: a recording may come from another machine."""
    return path.replace("\\", "/").rpartition("/")[2]


@dataclass(frozen=True)
class Frame:
    """A Python stack frame.

    Attributes:
        file: Path as recorded; absolute where profkit recorded it.
        line: Line number from 1. With ``precision`` ``"function"``, the line of the definition, or
            None where only file and function are known.
        function: Name of the function; ``<module>`` at the top level of a file.
        precision: ``"line"`` where the executed line is known; ``"function"`` where the recording
            has only the function, as in stacks of torch.
    """

    file: str
    line: int | None
    function: str
    precision: Literal["line", "function"] = "line"

    @property
    def location(self) -> "Location":
        """Return the frame as the location of a finding."""
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
        """Return ``train.py:12``, or else the operator, or else :data:`NO_SOURCE_LINE`.

        Where only the function is known, ``main (train.py)``, at the top level ``train.py``.
        """
        if self.file is None:
            return self.op or NO_SOURCE_LINE
        line = numbered_line(base_name(self.file), self.line)
        of_function = self.precision == "function" and self.function not in (None, MODULE_LEVEL)
        return f"{self.function} ({line})" if of_function else line


def first_with_file(locations: Iterable[Location]) -> Location | None:
    """Return the first location in a file, which is the most important one; None without any."""
    return next((location for location in locations if location.file), None)


@dataclass(frozen=True)
class SourceSnippet:
    """Consecutive lines of a file.

    Attributes:
        first: Number of the first line, from 1.
        lines: The lines, without line ends and without their common indent.
        marked: Number of the line at the location.
    """

    first: int
    lines: tuple[str, ...]
    marked: int
