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
"""Stacks with the same frames at the same few positions. More are not compared, so that a crafted
file cannot take quadratic time."""
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

    def number(self, stacks: Iterable[Any]) -> npt.NDArray[np.int32]:
        """Return the number of each stack. Shape ``(n,)``.

        Args:
            stacks: Lists of frames, innermost first; anything else gets :data:`NO_STACK`.
        """
        numbers = array("i")
        append, candidates_by_key = numbers.append, self._candidates
        previous, number = None, NO_STACK

        for stack in stacks:
            # The entries free_requested and free_completed of a block share one list.
            if stack is not previous:
                previous = stack
                if type(stack) is list and stack:
                    n = len(stack)
                    key = id(stack[0]) ^ id(stack[n >> 1]) ^ id(stack[-(n >> 2) - 1])
                    candidates = candidates_by_key.get(key)
                    if candidates is not None and stack == candidates[0][0]:
                        number = candidates[0][1]
                    else:
                        number = self._find_number(stack, key)
                else:
                    number = NO_STACK
            append(number)
        return np.frombuffer(numbers, dtype=np.int32) if numbers else np.zeros(0, dtype=np.int32)

    def stacks(self) -> Stacks:
        """Return all stacks so far."""
        return Stacks(
            frames=tuple(self._number_of_frame),
            start=np.array(self._starts, dtype=np.int32),
            frame=np.array(self._flat, dtype=np.int32),
        )

    def _find_number(self, stack: list[Any], key: int) -> int:
        for candidate, number in self._candidates.get(key, ()):
            if stack == candidate:
                return number

        # Equal stacks may have other frame objects, so the frames themselves decide.
        frames = tuple(map(self._number_frame, stack))
        number = self._number_of_stack.setdefault(frames, len(self._number_of_stack))
        if number == len(self._starts) - 1:
            self._flat.extend(frames)
            self._starts.append(len(self._flat))

        if all(map(_is_flat, stack)):
            candidates = self._candidates.setdefault(key, [])
            if len(candidates) < _MAX_CANDIDATES:
                candidates.append((stack, number))
        return number

    def _number_frame(self, entry: Any) -> int:  # noqa: ANN401  (any unpickled data)
        return self._number_of_frame.setdefault(_to_frame(entry), len(self._number_of_frame))


def _is_flat(entry: Any) -> bool:  # noqa: ANN401  (any unpickled data)
    """Return whether a frame is a dictionary without nested values."""
    return type(entry) is dict and {*map(type, entry), *map(type, entry.values())} <= _SCALARS


def _to_frame(entry: Any) -> Frame:  # noqa: ANN401  (any unpickled data)
    fields = entry if type(entry) is dict else {}
    file, line, function = fields.get("filename"), fields.get("line"), fields.get("name")
    return Frame(
        file=file if type(file) is str else "??",
        line=line if type(line) is int and 0 <= line < _MAX_LINE else 0,
        function=function if type(function) is str else "??",
    )
