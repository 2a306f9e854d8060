"""Which functions on a stack are the user's own code, and where they are.

The user's code is everything outside installed packages, the standard library and profkit.
"""

from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Final

from profkit.capture.source.files import INTERACTIVE, PROFKIT_FOLDER, in_library, library_roots
from profkit.model.location import Frame

_MAX_DEPTH: Final = 64
"""Frames of a stack that are examined: deep recursion would make each sample expensive."""
_MAX_USER_FRAMES: Final = 12
"""User frames of a stack that are returned."""

Place = tuple[str, int, str]
"""File, line and function of a frame."""
Stack = tuple[Place, ...]
"""Places in the user's own code, innermost first."""


class UserCode:
    """Finds the frames of the user's own code."""

    def __init__(self) -> None:
        self._roots = library_roots()
        self._is_user_file: dict[str, bool] = {}

    def stack(self, frame: FrameType | None) -> Stack:
        """Return the user frames of a stack, innermost first.

        Args:
            frame: The innermost frame.
        """
        return tuple(islice(self._places(frame), _MAX_USER_FRAMES))

    def innermost(self, frame: FrameType | None) -> Place | None:
        """Return the innermost user frame of a stack, or None."""
        return next(self._places(frame), None)

    def _places(self, frame: FrameType | None) -> Iterator[Place]:
        """Yield the user frames of a stack, innermost first."""
        for _ in range(_MAX_DEPTH):
            if frame is None:
                return
            code = frame.f_code
            if self.is_user_file(code.co_filename):
                yield code.co_filename, frame.f_lineno, code.co_name
            frame = frame.f_back

    def is_user_file(self, file: str) -> bool:
        """Tell whether a file is the user's own.

        Args:
            file: Its ``co_filename``.
        """
        is_user = self._is_user_file.get(file)
        if is_user is None:
            generated = file.startswith("<") and not file.startswith(INTERACTIVE)
            is_user = not generated and not in_library(file, self._roots)
            self._is_user_file[file] = is_user
        return is_user


def is_profkit_frame(frame: FrameType) -> bool:
    """Tell whether a frame is profkit's own.

    A program of profkit's that runs as ``__main__``, as the demo does, counts as the user's.
    """
    if not frame.f_code.co_filename.startswith(PROFKIT_FOLDER):
        return False
    return frame.f_globals.get("__name__") != "__main__"


def frames_of(stack: Stack) -> tuple[Frame, ...]:
    """Return a stack as frames of the model."""
    return tuple(Frame(file, line, function) for file, line, function in stack)
