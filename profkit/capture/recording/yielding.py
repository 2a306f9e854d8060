"""Makes way for the program's own profilers: torch allows one at a time.

A profiler of the thread that records is noticed in a call of the program, where the recording can
be ended. One of another thread is not: that thread waits until this one has reached its next safe
point. If that takes too long, the recording is left to be cancelled, and its remains are stopped
once the other profiler has ended.
"""

import os
import threading
from collections.abc import Callable
from typing import Final

from profkit.capture.process import console, program_profilers, safe_points
from profkit.capture.recording.profiler import ProfilerRecording

MAX_WAIT_S: Final = 2.0
"""How long a profiler of another thread waits for the next safe point."""
_POLL_S: Final = 0.01


class Yielding:
    """One recording's way of making way.

    Args:
        name: The name of the recording.
        is_recording: Returns whether a window is open or about to open.
        yield_to: Ends the recording for the profiler of that name; called on its own thread.
        leave: Returns the windows that are open, and forgets them.

    Attributes:
        requested_by: The profiler of another thread that waits, or empty.
    """

    def __init__(
        self,
        name: str,
        is_recording: Callable[[], bool],
        yield_to: Callable[[str], None],
        leave: Callable[[], list[ProfilerRecording]],
    ) -> None:
        self.requested_by = ""
        self._name = name
        self._place = (os.getpid(), threading.get_ident())
        self._is_recording = is_recording
        self._yield_to = yield_to
        self._leave = leave
        self._cancelled: list[ProfilerRecording] = []

    def begin(self) -> None:
        """Notice the program's profilers from now on."""
        program_profilers.subscribe(self._on_profiler)

    def end(self) -> None:
        """Notice them no more, unless the remains of a cancelled recording are left."""
        if not self._cancelled:
            program_profilers.unsubscribe(self._on_profiler)

    @property
    def has_requests(self) -> bool:
        """Return whether there is something to do at a safe point."""
        return bool(self.requested_by or self._cancelled)

    def act(self) -> None:
        """Do what another thread has requested; called on the own thread, at a safe point."""
        self._stop_cancelled()
        name, self.requested_by = self.requested_by, ""
        if name:
            self._yield_to(name)

    def _on_profiler(self, name: str) -> None:
        """Make way before a profiler of the program does anything, in any thread."""
        self._stop_cancelled()
        if self._place[0] != os.getpid() or not self._is_recording():
            return
        if self._place[1] != threading.get_ident():
            self._wait_for(name)
        elif safe_points.is_safe():
            self._yield_to(name)
        else:
            # The profiler is started by this thread, which cannot reach a safe point before.
            self._cancel()

    def _wait_for(self, name: str) -> None:
        """Wait until the recording's own thread has ended it."""
        self.requested_by = name
        event = threading.Event()
        for _ in range(round(MAX_WAIT_S / _POLL_S)):
            if not self._is_recording():
                return
            event.wait(_POLL_S)
        # Withdrawn, as the profiler is about to start: ending the recording would now be too late.
        self.requested_by = ""
        self._cancel()

    def _cancel(self) -> None:
        """Leave a recording that the program's profiler is about to cancel."""
        self._cancelled = self._leave()
        is_elsewhere = self._place[1] != threading.get_ident()
        where = "in another thread" if is_elsewhere else "within an operator"
        console.warn(
            f"the program uses a profiler {where}, so the recording of “{self._name}” is dropped."
        )

    def _stop_cancelled(self) -> None:
        """Stop cancelled recordings, once no profiler of the program is open."""
        if not self._cancelled or self._place != (os.getpid(), threading.get_ident()):
            return
        profilers = [recording.torch_profiler for recording in self._cancelled]
        if program_profilers.is_open(except_for=profilers) or not safe_points.is_safe():
            return
        while self._cancelled:
            self._cancelled.pop().stop_cancelled()
        program_profilers.unsubscribe(self._on_profiler)
