"""Numbers the distinct stacks of a snapshot."""

from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.location import Frame
from profkit.model.snapshot import NO_STACK, Stacks

_MAX_LINE: Final = 1 << 31
_MAX_CANDIDATES: Final = 64
"""Stacks with the same frames at the same few positions; more are not compared, so that a crafted
file cannot make this quadratic."""
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class StackNumbers:
    """Gives equal stacks the same number.

    torch pickles a frame once and refers to it afterwards, but pickles a new list of frames for
    every allocation. A list is therefore compared only with lists that have the same frame objects
    at three positions; such a comparison mostly checks identities. Lists with nested values are
    never compared. This runs for every allocation and free and dominates the conversion to
    columns, hence the one long loop.

    All lists must stay alive meanwhile, since frames are identified by their address.
    """

    def __init__(self) -> None:
        self._candidates: dict[int, list[tuple[list[Any], int]]] = {}
        self._number_of_stack: dict[tuple[int, ...], int] = {}
        self._number_of_frame: dict[Frame, int] = {}
        self._flat: list[int] = []
        self._starts: list[int] = [0]

    def of(self, lists: Iterable[Any]) -> npt.NDArray[np.int32]:
        """The number of each stack. Shape ``(n,)``.

        Args:
            lists: Lists of frames, innermost first; anything else gets :data:`NO_STACK`.
        """
        numbers = array("i")
        append, candidates = numbers.append, self._candidates
        last, number = None, NO_STACK
        for listed in lists:
            # The entries free_requested and free_completed of a block share one list.
            if listed is not last:
                last = listed
                if type(listed) is list and listed:
                    n = len(listed)
                    key = id(listed[0]) ^ id(listed[n >> 1]) ^ id(listed[-(n >> 2) - 1])
                    known = candidates.get(key)
                    if known is not None and listed == known[0][0]:
                        number = known[0][1]
                    else:
                        number = self._number(listed, key)
                else:
                    number = NO_STACK
            append(number)
        return np.frombuffer(numbers, dtype=np.int32) if numbers else np.zeros(0, dtype=np.int32)

    def stacks(self) -> Stacks:
        """All stacks so far."""
        return Stacks(
            frames=tuple(self._number_of_frame),
            start=np.array(self._starts, dtype=np.int32),
            frame=np.array(self._flat, dtype=np.int32),
        )

    def _number(self, listed: list[Any], key: int) -> int:
        for known, number in self._candidates.get(key, ()):
            if listed == known:
                return number
        frames = tuple(map(self._frame, listed))
        number = self._number_of_stack.setdefault(frames, len(self._number_of_stack))
        if number == len(self._starts) - 1:
            self._flat.extend(frames)
            self._starts.append(len(self._flat))
        if all(map(_is_flat, listed)):
            candidates = self._candidates.setdefault(key, [])
            if len(candidates) < _MAX_CANDIDATES:
                candidates.append((listed, number))
        return number

    def _frame(self, entry: Any) -> int:  # noqa: ANN401  (any unpickled data)
        return self._number_of_frame.setdefault(_frame(entry), len(self._number_of_frame))


def _is_flat(entry: Any) -> bool:  # noqa: ANN401  (any unpickled data)
    """Whether a frame is a dictionary without nested values."""
    return type(entry) is dict and {*map(type, entry), *map(type, entry.values())} <= _SCALARS


def _frame(entry: Any) -> Frame:  # noqa: ANN401  (any unpickled data)
    fields = entry if type(entry) is dict else {}
    file, line, function = fields.get("filename"), fields.get("line"), fields.get("name")
    return Frame(
        file=file if type(file) is str else "??",
        line=line if type(line) is int and 0 <= line < _MAX_LINE else 0,
        function=function if type(function) is str else "??",
    )
