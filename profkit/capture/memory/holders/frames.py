"""Functions that run, and what their locals hold.

Until Python 3.12 a frame that is asked for its locals keeps the answer, and so keeps the objects
in it alive: the answer is emptied here again, unless the program itself holds it.
"""

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Final

from profkit.capture.source.user_code import is_profkit_frame

_KEEPS_NO_LOCALS: Final = (3, 13)
"""Since PEP 667 a frame's locals are a view."""


def running() -> Iterator[FrameType]:
    """The frames of all threads that are not profkit's own, the innermost of each thread first."""
    frame: FrameType | None
    # This function's own frame is among them: in no other variable, or it would keep itself.
    for frame in sys._current_frames().values():  # noqa: SLF001  (there is no other way)
        while frame is not None:
            if not is_profkit_frame(frame):
                yield frame
            frame = frame.f_back  # noqa: PLW2901


def place_of(code: CodeType) -> str:
    """Where a function is: ``Net.forward at train.py:12``, with the line that it begins at.

    Args:
        code: The function's code.
    """
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{name} at {file}:{code.co_firstlineno}"


def locals_of(frame: FrameType) -> dict[str, object]:
    """The local variables of a frame; none for a module's own frame, whose locals are its globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        namespace = frame.f_locals
        return {} if namespace is frame.f_globals else dict(namespace)
    if sys.version_info >= _KEEPS_NO_LOCALS:
        return dict(frame.f_locals)
    answer = frame.f_locals
    values = dict(answer)
    if sys.getrefcount(answer) <= _OF_FRAME_ALONE:
        # What exec() has put beside the variables has no other home and stays.
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            answer.pop(name, None)
    return values


def forget_locals() -> None:
    """Empty the answers that frames still keep, once nothing else of profkit's holds them."""
    for frame in running():
        locals_of(frame)


def _references_to_an_answer() -> int:
    """What a frame, a variable and an argument count for."""
    frame = sys._getframe()  # noqa: SLF001
    answer = frame.f_locals
    return sys.getrefcount(answer)


_OF_FRAME_ALONE: Final = _references_to_an_answer()
