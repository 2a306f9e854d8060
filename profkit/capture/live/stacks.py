"""Where all threads of this process are."""

import sys
import threading
from types import FrameType
from typing import Final

from profkit.capture import program

Call = tuple[str, int, str]
"""A frame: file, line, function."""

_IMPORTLIB: Final = "<frozen importlib"


def stacks(except_for: int | None) -> list[tuple[str, list[Call]]]:
    """The name and the frames of each Python thread, the innermost frame last.

    Threads that were not started by Python have frames only while they run Python code.

    Args:
        except_for: The ident of a thread that is left out, or None.

    Source: ``sys._current_frames``.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        (names.get(ident, "a native thread"), _calls(innermost))
        for ident, innermost in sys._current_frames().items()  # noqa: SLF001  (CPython's only way)
        if ident != except_for
    ]


def _calls(innermost: FrameType) -> list[Call]:
    """The frames of a thread, without those of the import system and of ``profkit run``."""
    calls: list[Call] = []
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_filename != program.__file__:
        file = frame.f_code.co_filename
        if not file.startswith(_IMPORTLIB):
            calls.append((file, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return calls[::-1]
