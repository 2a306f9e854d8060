"""The Python stack of any thread, read while the thread stands still.

Each stack is read in a single call of a function in C, so that no other thread comes in between: a
generator that was suspended meanwhile would have lost its callers, and a function that returned
would leave its locals to references of the reading thread, and their finalizers.

Source: ``sys._current_frames`` in Python's documentation; CPython lets another thread in between
bytecode instructions only (``Python/ceval.c``), and a suspended generator has no caller
(``gen_send_ex2`` in ``Objects/genobject.c``).
"""

import contextlib
import sys
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, itemgetter
from types import CodeType
from typing import Final

from profkit.capture.process import program

Call = tuple[str, int, str]
"""A frame: file, line, function."""
Calls = tuple[Call, ...]
"""The frames of a thread, the innermost last."""
Place = tuple[CodeType, int | None, int, object]
"""The code of a frame, its line, its place in the bytecode as of ``f_lasti``, and its trace
function."""

MAX_CALLS: Final = 200
"""Of deeper stacks, the outer frames are left out."""
_IMPORTLIB: Final = "<frozen importlib"
_READ_PLACE: Final = attrgetter("f_code", "f_lineno", "f_lasti", "f_trace")


def read_idents() -> list[int]:
    """Read the idents of all threads that Python knows, without references to their frames."""
    idents: list[int] = []
    idents.extend(chain.from_iterable(starmap(sys._current_frames, ((),))))  # noqa: SLF001  (CPython's only way)
    return idents


def read_stack(thread: int) -> list[Place]:
    """Read where each frame of a thread is, the innermost first; empty if it has ended.

    Args:
        thread: Its ident, as of ``threading.get_ident()``.
    """
    places: list[Place] = []
    innermost = map(itemgetter(thread), starmap(sys._current_frames, ((),)))  # noqa: SLF001  (as above)
    attributes = repeat("f_back", MAX_CALLS - 1)
    with contextlib.suppress(AttributeError, KeyError):  # of None, beyond the outermost frame
        places.extend(map(_READ_PLACE, accumulate(chain(innermost, attributes), getattr)))
    return places


def calls_of(places: list[Place]) -> list[Call]:
    """Return the calls of a stack, without those of the import system and of ``profkit run``."""
    calls: list[Call] = []
    for code, line, _, _ in places:
        if code.co_filename == program.__file__:
            break
        if not code.co_filename.startswith(_IMPORTLIB):
            calls.append((code.co_filename, line or 0, code.co_name))
    return calls[::-1]


def read_calls(thread: int) -> list[Call]:
    """Read the calls of a thread, the innermost last: those of :func:`calls_of`."""
    return calls_of(read_stack(thread))
