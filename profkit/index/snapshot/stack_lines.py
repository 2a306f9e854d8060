"""The line of each stack that its reader can change: the innermost one of the user's own code."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from profkit.index.host.frames import Ownership
from profkit.model.events import Int32s, Int64s, Mask
from profkit.model.location import Frame, Location
from profkit.model.snapshot import NO_STACK, Stacks

NO_LINE: Final = -1

_PYTHON: Final = re.compile(r"^<|\.(py|pyw|pyc|ipynb)$|(^|[/\\])[^/\\.?]+$", re.IGNORECASE)
"""Files of Python, cells of notebooks among them, which some notebooks give no ending."""
_OF_TORCH: Final = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\](torch|torchgen|functorch|triton)[/\\]"
    r"|(^|[/\\])torchinductor_|[/\\]torch_compile_debug[/\\]"
    r"|^torch[/\\]|[/\\]pytorch[^/\\]*[/\\]torch[/\\]"
)
_INSTALLED: Final = re.compile(r"[/\\](site|dist)-packages[/\\]")

_USERS, _PACKAGES, _TORCHS, _NO_PYTHON = range(4)
_OWNERSHIP: Final = Ownership(paths={}, libraries=(), known=False)


def is_python(frame: Frame) -> bool:
    """Whether a frame of a stack is Python's and not that of compiled code.

    ``stacks="all"`` mixes both; compiled frames have a source file of C++, an object file, or
    none at all.
    """
    return _PYTHON.search(frame.file) is not None


@lru_cache(maxsize=65536)
def _whose(file: str) -> int:
    if not _PYTHON.search(file):
        return _NO_PYTHON
    if _OF_TORCH.search(file):
        return _TORCHS
    if _OWNERSHIP.is_user(file):
        return _USERS
    return _PACKAGES if _INSTALLED.search(file) else _TORCHS


@dataclass(frozen=True)
class StackLines:
    """The telling line of every stack.

    It is the innermost one of the user's own code. Where a program is an installed package
    itself, it is the innermost one of any package but torch and the standard library; where there
    is nothing else, it is torch's.

    Attributes:
        stacks: The stacks.
        frame: Index into ``stacks.frames``, or :data:`NO_LINE` without a Python frame.
            Shape ``(k,)``.
        is_users: Whether it is a line of the user's own code. Shape ``(k,)``.
    """

    stacks: Stacks
    frame: Int32s
    is_users: Mask

    def of(self, stack: Int32s) -> Int32s:
        """The telling line of each of some stacks, or :data:`NO_LINE`. Shape of ``stack``."""
        if not len(self.frame):
            return np.full(len(stack), NO_LINE, dtype=np.int32)
        return np.where(stack == NO_STACK, NO_LINE, self.frame[stack]).astype(np.int32)

    def location(self, line: int) -> Location:
        """A line as a place; without any where there is :data:`NO_LINE`."""
        if line == NO_LINE:
            return Location()
        frame = self.stacks.frames[line]
        return Location(file=frame.file, line=frame.line, function=frame.function)

    def python(self, stack: int) -> tuple[Frame, ...]:
        """The Python frames of a stack, innermost first."""
        return tuple(frame for frame in self.stacks.of(stack) if is_python(frame))


def stack_lines(stacks: Stacks) -> StackLines:
    """Find the telling line of every stack."""
    whose = np.fromiter((_whose(f.file) for f in stacks.frames), np.int64, len(stacks.frames))
    place = best_frame_places(stacks, whose)
    frame = np.full(len(stacks), NO_LINE, dtype=np.int32)
    owner = np.full(len(stacks), _NO_PYTHON, dtype=np.int64)
    has = place >= 0
    frame[has] = stacks.frame[place[has]]
    owner[has] = whose[frame[has]]
    frame[owner == _NO_PYTHON] = NO_LINE
    return StackLines(stacks, frame, owner == _USERS)


def best_frame_places(stacks: Stacks, rank: Int64s) -> Int64s:
    """For each stack the place in ``stacks.frame`` of its innermost frame of the lowest rank.

    Args:
        rank: A rank for each of ``stacks.frames``, 0 or more. Shape ``(f,)``.

    Returns:
        Places, or -1 for a stack without frames. Shape ``(k,)``.
    """
    found = np.full(len(stacks), -1, dtype=np.int64)
    filled = np.flatnonzero(stacks.start[1:] > stacks.start[:-1])
    if not len(filled):
        return found
    n = len(stacks.frame)
    key = rank[stacks.frame] * n + np.arange(n)
    found[filled] = np.minimum.reduceat(key, stacks.start[filled].astype(np.intp)) % n
    return found
