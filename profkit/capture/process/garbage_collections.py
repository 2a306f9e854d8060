"""Garbage collections: a call before each, and when each began and ended.

A collection may take long. The handler of a signal that arrives meanwhile, such as Ctrl-C, is
called where Python code runs next. If that is a callback of the collector, Python drops what the
handler raises, and the program goes on. So no Python code runs at the end of a collection: the
callbacks are ``setattr(phases, "stop", info)`` and ``getattr(phases, "stop", info)``, calls in C.

Source: ``invoke_gc_callback`` in CPython's ``Modules/gcmodule.c`` calls each callback with a phase
and a dict, and reports its exception as unraisable.
"""

import contextlib
import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

_MAX_TIMES: Final = 10_000
"""Collections between two readings; the first of more are forgotten."""


class CollectorCallback:
    """A callback of the garbage collector, between :meth:`begin` and :meth:`end`.

    Args:
        function: Called with a phase and a dict. It should be in C, and handle its own exceptions.
    """

    def __init__(self, function: Callable[[str, dict[str, int]], object]) -> None:
        self._function = function

    def begin(self) -> None:
        """Call the function from now on."""
        gc.callbacks.append(self._function)

    def end(self) -> None:
        """Call the function no more."""
        with contextlib.suppress(ValueError):  # a program may clear the list
            gc.callbacks.remove(self._function)


def before_collections(act: Callable[[int], object]) -> CollectorCallback:
    """Return a callback that calls a function with the generation, before it is collected."""

    class _Phases:
        """``start`` is a property that calls the function, ``stop`` a plain attribute."""

        __slots__ = ("stop",)

        def _start(self, info: dict[str, int]) -> None:
            act(info["generation"])

        start = property(fset=_start)

    return CollectorCallback(partial(setattr, _Phases()))


class CollectionTimes:
    """Times the garbage collections of one thread.

    Args:
        thread: Its ident, as of ``threading.get_ident()``.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._starts: deque[tuple[int, int]] = deque(maxlen=_MAX_TIMES)
        self._stops: deque[tuple[int, int]] = deque(maxlen=_MAX_TIMES)
        # A property whose getter takes the next of an endless iterator, which reads the clock.
        getters = {
            "start": property(partial(next, _stamps(self._starts))),
            "stop": property(partial(next, _stamps(self._stops))),
        }
        phases: Any = type("_Phases", (), {"__slots__": (), **getters})()
        self._callback = CollectorCallback(partial(getattr, phases))

    def begin(self) -> None:
        """Note the time of each collection from now on."""
        self._callback.begin()

    def end(self) -> None:
        """Note no more times."""
        self._callback.end()

    def take(self, before_ns: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the collections that ended before a time, each of them once."""
        while self._stops and self._stops[0][0] <= before_ns:
            end_ns, thread = self._stops.popleft()
            begin_ns = self._take_start(end_ns)
            if begin_ns is not None and thread == self._thread:
                yield begin_ns, end_ns

    def _take_start(self, end_ns: int) -> int | None:
        """Take the last start before a stop; those before it have lost their stops."""
        begin_ns = None
        while self._starts and self._starts[0][0] <= end_ns:
            begin_ns, _ = self._starts.popleft()
        return begin_ns


def _stamps(times: deque[tuple[int, int]]) -> Iterator[None]:
    """Return an iterator that adds the time and the thread at each step, without Python code."""
    now_and_thread = zip(iter(time.time_ns, None), iter(threading.get_ident, None), strict=False)
    return map(times.append, now_and_thread)
