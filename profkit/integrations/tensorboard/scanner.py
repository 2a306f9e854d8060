"""Looks for recordings again and again, on a thread of its own, while somebody is interested."""

import threading
import time
from typing import Final

from profkit.integrations.tensorboard.discovery import (
    DiscoveredRecording,
    DiscoveryResult,
    LogRoot,
    find_recordings,
)

_REST_S: Final = 5.0
"""Between the end of one walk and the begin of the next."""


class Scanner:
    """What lies below some folders, as of a few seconds ago.

    Args:
        roots: The folders.
        rest_s: Seconds between two walks.
    """

    def __init__(self, roots: tuple[LogRoot, ...], rest_s: float = _REST_S) -> None:
        self._roots = roots
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._running = False
        self._ended_s: float | None = None
        self._found = DiscoveryResult()
        self._by_id: dict[str, DiscoveredRecording] = {}

    @property
    def has_looked(self) -> bool:
        """Whether a walk has come to its end."""
        return self._ended_s is not None

    @property
    def found(self) -> DiscoveryResult:
        """What the last walk found."""
        return self._found

    def recording(self, ident: str) -> DiscoveredRecording | None:
        """The recording of an id, or None.

        Args:
            ident: The id, from whoever asks.
        """
        return self._by_id.get(ident)

    def look(self) -> None:
        """Begin a walk, unless one is under way or has just ended. Returns at once."""
        with self._lock:
            rested = self._ended_s is None or time.monotonic() - self._ended_s >= self._rest_s
            if self._running or not rested:
                return
            self._running = True
        threading.Thread(target=self._walk, name="profkit scan", daemon=True).start()

    def _walk(self) -> None:
        try:
            found = find_recordings(self._roots)
            self._by_id = {each.id: each for each in found.recordings}
            self._found = found
        finally:
            with self._lock:
                self._running = False
                self._ended_s = time.monotonic()
