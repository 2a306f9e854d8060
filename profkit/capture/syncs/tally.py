"""Counts waits by line: one entry a line, however often it waits."""

import threading
from collections import Counter

from profkit.capture.syncs.wait import Wait
from profkit.model.live_memory import SyncSite
from profkit.model.location import Frame

_Line = tuple[str, str, int, str, str | None]


class Tally:
    """Waits by what waits, the user's line, and why it is allowed."""

    def __init__(self) -> None:
        self._n_calls: Counter[_Line] = Counter()
        self._lock = threading.Lock()

    def hear(self, wait: Wait, _at_the_line: bool = False) -> None:  # noqa: FBT001, FBT002  (a listener)
        """Count a wait."""
        file, line, function = wait.place or ("", 0, "")
        with self._lock:
            self._n_calls[wait.what, file, line, function, wait.reason] += 1

    def lines(self) -> tuple[SyncSite, ...]:
        """What was counted, the most calls first, then by place."""
        with self._lock:
            counted = sorted(self._n_calls.items(), key=lambda each: (-each[1], *map(str, each[0])))
        return tuple(
            SyncSite(
                operation=what,
                frame=Frame(file, line, function) if file else None,
                n_calls=n_calls,
                allowed_reason=reason,
            )
            for (what, file, line, function, reason), n_calls in counted
        )
