"""Stacks as numbers, each one once."""

from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.location import Frame
from profkit.model.snapshot import NO_STACK, Stacks

_MAX_LINE: Final = 1 << 31
_MOST_ALIKE: Final = 64
"""Stacks with the same frames in the same few places; what has more was made to take long."""
_FLAT: Final = frozenset({str, int, float, bool, type(None)})


class StackNumbers:
    """Gives stacks numbers.

    torch writes a frame once and refers to it from then on; lists of frames it makes anew for
    every allocation, alike as they are. So a list is compared with those that have the same frames
    in a few places, frame by frame, which takes no longer than a look at each. What it is compared
    with was read and is flat, so that nothing nested is ever compared with something nested. This
    runs once an allocation and a free, and is most of what columns cost: hence the one long loop.

    All lists must stay alive meanwhile: frames are told apart by where they are in memory.
    """

    def __init__(self) -> None:
        self._alike: dict[int, list[tuple[list[Any], int]]] = {}
        self._of_frames: dict[tuple[int, ...], int] = {}
        self._number_of_frame: dict[Frame, int] = {}
        self._flat: list[int] = []
        self._starts: list[int] = [0]

    def of(self, lists: Iterable[Any]) -> npt.NDArray[np.int32]:
        """The numbers of some stacks.

        Args:
            lists: A list of frames each, innermost first; anything else is no stack.
        """
        numbers = array("i")
        put, alike = numbers.append, self._alike
        last, number = None, NO_STACK
        for listed in lists:
            # What is requested and what is completed share one list, one after the other.
            if listed is not last:
                last = listed
                if type(listed) is list and listed:
                    n = len(listed)
                    key = id(listed[0]) ^ id(listed[n >> 1]) ^ id(listed[-(n >> 2) - 1])
                    known = alike.get(key)
                    if known is not None and listed == known[0][0]:
                        number = known[0][1]
                    else:
                        number = self._number(listed, key)
                else:
                    number = NO_STACK
            put(number)
        return np.frombuffer(numbers, dtype=np.int32) if numbers else np.zeros(0, dtype=np.int32)

    def stacks(self) -> Stacks:
        """All stacks so far."""
        return Stacks(
            frames=tuple(self._number_of_frame),
            start=np.array(self._starts, dtype=np.int32),
            frame=np.array(self._flat, dtype=np.int32),
        )

    def _number(self, listed: list[Any], key: int) -> int:
        for known, number in self._alike.get(key, ()):
            if listed == known:
                return number
        number = self._new_number(listed)
        if all(map(_is_flat, listed)):
            alike = self._alike.setdefault(key, [])
            if len(alike) < _MOST_ALIKE:
                alike.append((listed, number))
        return number

    def _new_number(self, listed: list[Any]) -> int:
        frames = tuple(map(self._frame, listed))
        number = self._of_frames.setdefault(frames, len(self._of_frames))
        if number == len(self._starts) - 1:
            self._flat.extend(frames)
            self._starts.append(len(self._flat))
        return number

    def _frame(self, entry: Any) -> int:  # noqa: ANN401  (whatever a pickle holds)
        return self._number_of_frame.setdefault(_frame(entry), len(self._number_of_frame))


def _is_flat(entry: Any) -> bool:  # noqa: ANN401  (whatever a pickle holds)
    """Whether nothing is nested in a frame."""
    return type(entry) is dict and {*map(type, entry), *map(type, entry.values())} <= _FLAT


def _frame(entry: Any) -> Frame:  # noqa: ANN401  (whatever a pickle holds)
    fields = entry if type(entry) is dict else {}
    file, line, function = fields.get("filename"), fields.get("line"), fields.get("name")
    return Frame(
        file=file if type(file) is str else "??",
        line=line if type(line) is int and 0 <= line < _MAX_LINE else 0,
        function=function if type(function) is str else "??",
    )
