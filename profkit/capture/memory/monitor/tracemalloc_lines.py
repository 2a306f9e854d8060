"""Attributes Python objects that stay alive to the source lines that allocated them, on request.

``tracemalloc`` then records the line of every allocation, which makes a pure-Python program 1.3 to
2 times slower, so it is off by default. It is paused during inspections, which it would slow down
tenfold. Stopping it discards its records, so what was allocated since and is alive is added up
before.

Source: ``tracemalloc`` of Python's library reference.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from profkit.capture.source.user_code import Place, UserCode

FRAMES: Final = 4
"""Frames recorded per allocation, as library frames lie between it and the user's line. With 1
frame the program takes 1.3 times as long, with 25 frames 4.9 times."""


class TracemallocLines:
    """Bytes allocated per source line.

    Args:
        enabled: If false, all methods do nothing.

    Attributes:
        bytes_by_line: Bytes that were alive at the end of each period of tracing, added up.
    """

    def __init__(self, *, enabled: bool = False) -> None:
        self.bytes_by_line: dict[Place, int] = {}
        self._enabled = enabled
        self._started_here = False
        self._user_code = UserCode()

    def begin(self) -> None:
        """Start tracing, unless the program itself has started it."""
        if self._enabled and not tracemalloc.is_tracing():
            tracemalloc.start(FRAMES)
            self._started_here = True

    def end(self) -> None:
        """Stop tracing, if it was started here."""
        if self._started_here:
            tracemalloc.stop()
            self._started_here = False

    def own_bytes(self) -> int:
        """Memory that the trace itself takes."""
        return tracemalloc.get_tracemalloc_memory() if self._started_here else 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Add up what was allocated since and is alive, and trace nothing while open."""
        if not self._started_here or not tracemalloc.is_tracing():
            yield
            return
        self._add_up()
        tracemalloc.stop()
        try:
            yield
        finally:
            tracemalloc.start(FRAMES)

    def _add_up(self) -> None:
        for statistic in tracemalloc.take_snapshot().statistics("traceback"):
            # The most recent call is last. Function names are not recorded.
            for frame in reversed(statistic.traceback):
                if self._user_code.is_user_file(frame.filename):
                    line = frame.filename, frame.lineno, ""
                    self.bytes_by_line[line] = self.bytes_by_line.get(line, 0) + statistic.size
                    break
