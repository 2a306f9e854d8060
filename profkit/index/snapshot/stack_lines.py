"""The source line of each allocation stack: its innermost frame of user code."""

import re
from functools import lru_cache
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.frames import Ownership
from profkit.model.events import Int32s, Int64s, Mask, Rows
from profkit.model.location import Frame, Location
from profkit.model.snapshot import NO_STACK, Stacks
from profkit.patterns import regex

NO_LINE: Final = -1

_PYTHON: Final = regex(r"^<|\.(py|pyw|pyc|ipynb)$|(^|[/\\])[^/\\.?]+$", re.IGNORECASE)
"""Python files, including notebook cells, which may lack a file extension."""
_TORCH_FILE: Final = regex(
    r"[/\\](site-packages|dist-packages)[/\\](torch|torchgen|functorch|triton)[/\\]"
    r"|(^|[/\\])torchinductor_|[/\\]torch_compile_debug[/\\]"
    r"|^torch[/\\]|[/\\]pytorch[^/\\]*[/\\]torch[/\\]"
    # profkit itself, where it is not installed but runs from a checkout.
    r"|[/\\]profkit[/\\](capture|cli|integrations)[/\\]"
)
_INSTALLED: Final = regex(r"[/\\](site|dist)-packages[/\\]")

_USER, _PACKAGE, _TORCH, _NOT_PYTHON = range(4)
_OWNERSHIP: Final = Ownership(paths={}, libraries=(), is_known=False)


def is_python(frame: Frame) -> bool:
    """Return whether a frame is a Python frame, not a frame of compiled code.

    ``stacks="all"`` mixes both. Compiled frames have a C++ source file, an object file, or none.
    """
    return _PYTHON.search(frame.file) is not None


@lru_cache(maxsize=65536)
def _find_owner(file: str) -> int:
    if not _PYTHON.search(file):
        return _NOT_PYTHON
    if _TORCH_FILE.search(file):
        return _TORCH
    if _OWNERSHIP.is_user(file):
        return _USER
    return _PACKAGE if _INSTALLED.search(file) else _TORCH


@dataclass(frozen=True)
class StackLines:
    """The source line of every stack.

    It is the innermost frame of user code. If there is none, as in a program that is itself an
    installed package, it is the innermost frame of a package other than torch and the standard
    library; else it is torch's.

    Attributes:
        frame: Index into ``stacks.frames``, or :data:`NO_LINE` without a Python frame.
            Shape ``(k,)``.
        is_users: Whether it is user code. Shape ``(k,)``.
    """

    stacks: Stacks
    frame: Int32s
    is_users: Mask

    def of(self, stack: Int32s) -> Int32s:
        """Return the source line of each stack, or :data:`NO_LINE`. Shape of ``stack``."""
        if not len(self.frame):
            return np.full(len(stack), NO_LINE, dtype=np.int32)
        return np.where(stack == NO_STACK, NO_LINE, self.frame[stack]).astype(np.int32)

    def location(self, line: int) -> Location:
        """Return a source line as a location, empty for :data:`NO_LINE`."""
        if line == NO_LINE:
            return Location()
        frame = self.stacks.frames[line]
        return Location(file=frame.file, line=frame.line, function=frame.function)

    def python(self, stack: int) -> tuple[Frame, ...]:
        """Return the Python frames of a stack, innermost first."""
        return tuple(frame for frame in self.stacks.of(stack) if is_python(frame))


def find_stack_lines(stacks: Stacks) -> StackLines:
    """Find the source line of every stack."""
    owner_of = np.fromiter(
        (_find_owner(frame.file) for frame in stacks.frames), np.int64, len(stacks.frames)
    )
    place = find_best_frame_places(stacks, owner_of)
    frame = np.full(len(stacks), NO_LINE, dtype=np.int32)
    owner = np.full(len(stacks), _NOT_PYTHON, dtype=np.int64)
    has_frame = place >= 0
    frame[has_frame] = stacks.frame[place[has_frame]]
    owner[has_frame] = owner_of[frame[has_frame]]
    frame[owner == _NOT_PYTHON] = NO_LINE
    return StackLines(stacks, frame, owner == _USER)


def find_best_frame_places(stacks: Stacks, rank: Int64s) -> Int64s:
    """Find each stack's innermost frame of the lowest rank, as an index in ``stacks.frame``.

    Args:
        rank: Rank of each of ``stacks.frames``, 0 or more. Shape ``(f,)``.

    Returns:
        Indices, or -1 for a stack without frames. Shape ``(k,)``.
    """
    place = np.full(len(stacks), -1, dtype=np.int64)
    filled = np.flatnonzero(stacks.start[1:] > stacks.start[:-1])
    if not len(filled):
        return place

    # One number for rank and place, so that the minimum has the lowest rank, then the innermost
    # place.
    n_places = len(stacks.frame)
    key = rank[stacks.frame] * n_places + np.arange(n_places)
    place[filled] = np.minimum.reduceat(key, stacks.start[filled].astype(np.intp)) % n_places
    return place


def stacks_with(stacks: Stacks, frames: Mask) -> Mask:
    """Return which stacks contain at least one of some frames of ``stacks.frames``.

    Shape ``(k,)``.
    """
    has_frame = np.zeros(len(stacks), dtype=np.bool_)
    of_stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.start))
    has_frame[of_stack[frames[stacks.frame]]] = True
    return has_frame


def find_call_sites(stacks: Stacks, is_callee: Mask) -> Rows:
    """Find the frames of the program and its packages that call some frames directly.

    Args:
        is_callee: Which of ``stacks.frames`` are called. Shape ``(f,)``.

    Returns:
        Indices in ``stacks.frame``.
    """
    owner = np.fromiter(
        (_find_owner(frame.file) for frame in stacks.frames), np.int64, len(stacks.frames)
    )
    # Compiled frames may lie between a call and what it calls.
    places = np.flatnonzero(owner[stacks.frame] != _NOT_PYTHON)
    frame = stacks.frame[places]
    is_site = np.isin(owner[frame[1:]], (_USER, _PACKAGE)) & is_callee[frame[:-1]]

    # The outermost frame of a stack is followed by the innermost of the next one.
    of_stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.start))[places]
    return np.asarray(places[1:][is_site & (of_stack[1:] == of_stack[:-1])])
