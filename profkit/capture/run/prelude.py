"""The prelude of a run: its first operators, recorded as long as its steps are not known.

It begins when the program imports torch, and ends where steps are recorded instead, or with the
program. There may be no safe point for long in between, so it is bounded in another way: when there
are enough events, torch stops to collect further ones, which any thread may request. The profiler
itself is stopped at the next safe point.

Operators alone are recorded, of all threads. What the rest of a run without steps did is known by
samples of its stacks.
"""

import sys
import threading
import time
from typing import Final

from profkit.capture.process import own_threads
from profkit.capture.process.stack_sampler import StackSampler
from profkit.capture.recording import current
from profkit.capture.recording.harmless_kinds import can_mute
from profkit.capture.recording.options import Options
from profkit.capture.recording.recording_budget import Events
from profkit.capture.recording.sampled_functions import summarize_samples
from profkit.capture.recording.session import Session
from profkit.model.capture_info import SampledTime

MAX_EVENTS: Final = 20_000
"""They take a tenth of a second to collect, and half a second in all."""
MIN_CPU_S: Final = 0.1
"""CPU time that is recorded in any case: the heap grows by more than events."""
MAX_CPU_S: Final = 10.0
"""CPU time after which there are enough events, however few they are."""
_POLL_S: Final = 0.05
_IMPORTLIB: Final = "<frozen importlib"


class Prelude:
    """Records the begin of a run.

    Args:
        name: The name of the run.
        options: What to record.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._session: Session | None = None
        self._is_set_up = False
        self._sampler = StackSampler()
        self._is_over = threading.Event()
        self._thread = threading.get_ident()

    @property
    def session(self) -> Session | None:
        """Return the recording, if there is one."""
        return self._session

    @property
    def is_recording(self) -> bool:
        """Return whether it is being recorded."""
        return self._session is not None and self._session.is_recording

    @property
    def is_collecting(self) -> bool:
        """Return whether its events are collected now, which take memory."""
        return self._session is not None and self.is_recording and not self._session.is_muted

    def begin(self) -> None:
        """Begin to record, and to sample stacks."""
        self._is_over = threading.Event()
        self._sampler.start()
        if not can_mute():
            return
        self._session = current.open_session(self._name, self._options, None, "whole")
        # A thread of its own, as the program may reach no safe point for long.
        if self._session is not None and self.is_recording:
            self._session.writer.sampled = self._summarize_samples
            own_threads.start(self._mute_in_time)

    def module_called(self) -> None:
        """Record from this safe point on, if what came before has had too many events.

        The first call of a module tells more than how the program set itself up. A later one may be
        the last, after which there is nothing to record.
        """
        is_first, self._is_set_up = not self._is_set_up, True
        if is_first and self._session is not None and self._session.is_muted:
            self.drop()
            self.begin()

    def stop_sampling(self) -> None:
        """Sample no more stacks: the program profiles itself."""
        self._sampler.stop()

    def freeze(self) -> None:
        """Stop at a safe point, and let steps be recorded; what was recorded may be needed."""
        self._is_over.set()
        self._sampler.stop()
        if self._session is not None:
            self._session.freeze()
            # It is written later, if at all: the session of the steps begins before.
            current.detach(self._session)

    def drop(self) -> None:
        """Free what was recorded: there is something better."""
        self.freeze()
        if self._session is not None:
            self._session.abandon()
            self._session = None

    def finish(self, stopped_by: str = "") -> None:
        """Write what was recorded, as the run has ended.

        Args:
            stopped_by: The exception or signal that ended the program early, or empty.
        """
        self._is_over.set()
        self._sampler.stop()
        if self._session is not None:
            current.leave(self._session, stopped_by, is_last=True)

    def _summarize_samples(self) -> SampledTime | None:
        self._sampler.stop()
        return summarize_samples(self._sampler)

    def _mute_in_time(self) -> None:
        """Have torch collect no more operators once there are enough."""
        is_over, session = self._is_over, self._session
        events, n_events, began_s = Events(), 0.0, time.process_time()
        while session is not None and not is_over.wait(_POLL_S):
            cpu_s = time.process_time() - began_s
            # From one reading of the heap to the next, so that imports can be left out.
            n_latest, events = events.at_most(), Events()
            # Modules that are imported take much of the heap, and have hardly any operators.
            n_events += 0 if self._is_importing() else n_latest
            if cpu_s > MAX_CPU_S or (cpu_s > MIN_CPU_S and n_events > MAX_EVENTS):
                session.mute()
                break

    def _is_importing(self) -> bool:
        """Return whether the thread that records is within an import."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001  (CPython's only way)
        while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
            frame = frame.f_back
        return frame is not None
