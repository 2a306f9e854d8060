"""The program's regions (``record_function``) that are open on one thread, and where they end.

A recording that stops within a region cuts it. So a step that ends within one, as in
``with record_function("update"): optimizer.step()``, ends for profkit where that region does.

Source: ``torch.autograd.profiler.record_function``, which torch's Python code uses too.
"""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

from profkit.capture.process.compiling import dynamo_flag, unless_paused
from profkit.capture.process.wrappers import replace_attribute


class OpenRegions:
    """Follows the regions of the thread that makes it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._numbers = itertools.count()
        # Of each open region the id of its object, which another one may have later, and a number.
        self._open: list[tuple[int, int]] = []
        self._seen: frozenset[int] = frozenset()
        self._waits_for: frozenset[int] = frozenset()
        self._waiting: Callable[[], None] | None = None

    def follow(self) -> Callable[[], None]:
        """Follow regions from now on; returns what stops that."""
        from torch.autograd.profiler import record_function

        kind: Any = record_function
        enter, leave = kind.__enter__, kind.__exit__
        thread, is_dynamo_tracing = self._thread, dynamo_flag()

        @functools.wraps(enter)
        def begin(region: Any) -> Any:  # noqa: ANN401
            if not is_dynamo_tracing() and threading.get_ident() == thread:
                self._open.append((id(region), next(self._numbers)))
            return enter(region)

        @functools.wraps(leave)
        def end(region: Any, *error: Any) -> Any:  # noqa: ANN401
            result = leave(region, *error)
            if not is_dynamo_tracing() and threading.get_ident() == thread:
                self._end(id(region))
            return result

        undo = contextlib.ExitStack()
        undo.callback(self._open.clear)
        undo.callback(replace_attribute(kind, "__enter__", begin))
        undo.callback(replace_attribute(kind, "__exit__", end))
        return undo.close

    @property
    def are_open(self) -> bool:
        """Return whether a region is open."""
        return bool(self._open)

    @property
    def are_waited_for(self) -> bool:
        """Return whether a function waits until regions end."""
        return self._waiting is not None

    def call_outside(self, action: Callable[[], None]) -> None:
        """Call a function now, or where the regions end that have begun since the last call.

        Regions that were open at the last call already are around the loop. A function that still
        waits is not called any more, nor one whose region ends where the program is paused; see
        :mod:`profkit.capture.process.compiling`.
        """
        if not self._open:
            self._seen, self._waiting = frozenset(), None
            action()
            return
        numbers = frozenset(number for _, number in self._open)
        new, self._seen = numbers - self._seen, numbers
        self._waiting, self._waits_for = (unless_paused(action), new) if new else (None, new)
        if not new:
            action()

    def _end(self, region: int) -> None:
        # The innermost one: the object of a region that was never ended may have had this id.
        for place in reversed(range(len(self._open))):
            if self._open[place][0] == region:
                del self._open[place]
                break
        action = self._waiting
        if action is not None and self._waits_for.isdisjoint(number for _, number in self._open):
            self._waiting = None
            action()
