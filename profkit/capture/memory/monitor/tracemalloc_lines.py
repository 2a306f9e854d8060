"""Which lines of the program made the Python objects that stay, where that was asked for.

Python itself notes the lines of every allocation then (``tracemalloc``), which makes a program that
works in Python 1.3 to 2 times slower; so it is off unless somebody asks. Going through all objects
would be noted too, and take ten times as long: Python notes nothing meanwhile. It forgets what it
has noted when it stops, so what has been made since and is still alive is added up before.

Source: ``tracemalloc`` of Python's library reference.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from profkit.capture.source.user_code import Place, UserCode

FRAMES: Final = 4
"""Frames noted of an allocation: a library's own stand between the program's line and it. One
costs 1.3 times the time, 25 cost 4.9 times."""


class TracemallocLines:
    """The lines that made what stays.

    Args:
        is_wanted: Whether they were asked for; else all of this does nothing.

    Attributes:
        made: Bytes by line that were alive at the end of one stretch of noting or another.
    """

    def __init__(self, *, is_wanted: bool = False) -> None:
        self.made: dict[Place, int] = {}
        self._is_wanted = is_wanted
        self._is_ours = False
        self._user = UserCode()

    def begin(self) -> None:
        """Note lines from now on; what the program itself has begun is left to it."""
        if self._is_wanted and not tracemalloc.is_tracing():
            tracemalloc.start(FRAMES)
            self._is_ours = True

    def end(self) -> None:
        """Note no more, if it was begun here."""
        if self._is_ours:
            tracemalloc.stop()
            self._is_ours = False

    def own_bytes(self) -> int:
        """Bytes that the notes themselves take."""
        return tracemalloc.get_tracemalloc_memory() if self._is_ours else 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Add up what was made since and is alive, and note nothing within."""
        if not self._is_ours or not tracemalloc.is_tracing():
            yield
            return
        self._add_up()
        tracemalloc.stop()
        try:
            yield
        finally:
            tracemalloc.start(FRAMES)

    def _add_up(self) -> None:
        for made in tracemalloc.take_snapshot().statistics("traceback"):
            # The most recent call comes last. Which function it was in is not noted.
            for frame in reversed(made.traceback):
                if self._user.is_user_file(frame.filename):
                    place = frame.filename, frame.lineno, ""
                    self.made[place] = self.made.get(place, 0) + made.size
                    break
