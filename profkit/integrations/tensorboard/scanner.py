"""Searches for recordings repeatedly, on a background thread, while the tab is in use."""

import threading
import time
from typing import Final

from profkit.integrations.tensorboard.discovery import (
    DiscoveredRecording,
    DiscoveryResult,
    LogRoot,
    find_recordings,
)

_PAUSE_S: Final = 5.0


class Scanner:
    """The recordings below some folders, as of a few seconds ago.

    Args:
        roots: The folders.
        pause_s: Seconds from the end of one scan to the start of the next.
    """

    def __init__(self, roots: tuple[LogRoot, ...], pause_s: float = _PAUSE_S) -> None:
        self._roots = roots
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._running = False
        self._ended_s: float | None = None
        self._found = DiscoveryResult()
        self._by_id: dict[str, DiscoveredRecording] = {}

    @property
    def has_scanned(self) -> bool:
        """Whether a scan has completed."""
        return self._ended_s is not None

    @property
    def found(self) -> DiscoveryResult:
        """The result of the last scan."""
        return self._found

    def recording(self, ident: str) -> DiscoveredRecording | None:
        """The recording with an id, or None; the id may come from any client."""
        return self._by_id.get(ident)

    def start(self) -> None:
        """Start a scan, unless one is running or has just ended. Returns at once."""
        with self._lock:
            is_due = self._ended_s is None or time.monotonic() - self._ended_s >= self._pause_s
            if self._running or not is_due:
                return
            self._running = True
        threading.Thread(target=self._scan, name="profkit scan", daemon=True).start()

    def _scan(self) -> None:
        try:
            found = find_recordings(self._roots)
            self._by_id = {each.id: each for each in found.recordings}
            self._found = found
        finally:
            with self._lock:
                self._running = False
                self._ended_s = time.monotonic()
