"""One observed sync, and a count of syncs per source line."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from profkit.capture.source.user_code import Place
from profkit.model.live_memory import SyncSite
from profkit.model.location import Frame


@dataclass(frozen=True)
class Sync:
    """The host blocks until a device has finished.

    Attributes:
        operation: What synchronizes, for the report.
        place: The source line, or None in a thread that runs no user code.
        allowed_reason: The reason given to ``profkit.allow_sync``, or None.
        guard: The innermost ``profkit.no_sync`` around it, or None.
        in_native_thread: Whether the thread was not started by Python, as autograd's are not.
    """

    operation: str
    place: Place | None
    allowed_reason: str | None
    guard: object
    in_native_thread: bool


Listener = Callable[[Sync, bool], None]
"""Receives a sync, and whether an exception that it raises surfaces at the source line."""


class SyncCounter:
    """Counts syncs per operation, source line and allowed reason."""

    def __init__(self) -> None:
        self._n_calls: Counter[tuple[str, str, int, str, str | None]] = Counter()
        self._lock = threading.Lock()

    def count(self, sync: Sync, _raises_at_line: bool = False) -> None:  # noqa: FBT001, FBT002  (a Listener)
        """Count one sync."""
        file, line, function = sync.place or ("", 0, "")
        with self._lock:
            self._n_calls[sync.operation, file, line, function, sync.allowed_reason] += 1

    def sites(self) -> tuple[SyncSite, ...]:
        """The counts, the most calls first, then by place."""
        with self._lock:
            counted = sorted(self._n_calls.items(), key=lambda each: (-each[1], *map(str, each[0])))
        return tuple(
            SyncSite(operation, Frame(file, line, function) if file else None, n_calls, reason)
            for (operation, file, line, function, reason), n_calls in counted
        )
