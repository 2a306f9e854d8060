"""Which of the functions that run are of the user's own code, and where they are.

The user's code is what lies neither in an installed package nor in the standard library.
"""

from types import FrameType
from typing import Final

from profkit.capture.source.files import INTERACTIVE, in_library, library_roots
from profkit.model.location import Frame

_MOST_WALKED: Final = 64
"""Frames of a stack that are looked at."""
_MOST_KEPT: Final = 12
"""Frames of the user's that a stack has at most."""

Place = tuple[str, int, str]
"""File, line and function of a frame."""
Stack = tuple[Place, ...]
"""Places of the user's own code, the innermost first."""


class UserCode:
    """Which frames are of the user's own code."""

    def __init__(self) -> None:
        self._roots = library_roots()
        self._is_users: dict[str, bool] = {}

    def stack(self, frame: FrameType | None) -> Stack:
        """The user's own frames around a place, the innermost first.

        Args:
            frame: The innermost frame.
        """
        found: list[Place] = []
        for _ in range(_MOST_WALKED):
            if frame is None or len(found) == _MOST_KEPT:
                break
            file = frame.f_code.co_filename
            if self.holds(file):
                found.append((file, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(found)

    def innermost(self, frame: FrameType | None) -> Place | None:
        """The first of them alone, or None.

        Args:
            frame: The innermost frame.
        """
        for _ in range(_MOST_WALKED):
            if frame is None:
                break
            file = frame.f_code.co_filename
            if self.holds(file):
                return file, frame.f_lineno, frame.f_code.co_name
            frame = frame.f_back
        return None

    def holds(self, file: str) -> bool:
        """Whether the user wrote a file.

        Args:
            file: Its name as the code has it.
        """
        known = self._is_users.get(file)
        if known is None:
            odd = file.startswith("<") and not file.startswith(INTERACTIVE)
            known = self._is_users[file] = not odd and not in_library(file, self._roots)
        return known


def frames_of(stack: Stack) -> tuple[Frame, ...]:
    """A stack in the words of the model.

    Args:
        stack: The user's own places.
    """
    return tuple(Frame(file, line, function) for file, line, function in stack)
