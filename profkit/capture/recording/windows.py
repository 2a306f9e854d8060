"""The windows of one capture: the recorded steps, and the one step with stacks."""

import contextlib
from typing import Any

from profkit.capture.process import program_profilers
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.region import Region, warm_up


class RecordingWindows:
    """Torch's profiler for one capture. At most one of its windows is open at a time.

    Args:
        options: What to record.
        all_threads: Whether operators of all threads are recorded.
        on_python_profiler: Called before the program sets a profile function while stacks are
            recorded.

    Attributes:
        main: The recorded steps, or None.
        lines: The step with stacks, or None.
    """

    def __init__(
        self,
        options: Options,
        *,
        all_threads: bool,
        on_python_profiler: program_profilers.Listener,
    ) -> None:
        self.main: ProfilerRecording | None = None
        self.lines: ProfilerRecording | None = None
        self._options = options
        self._all_threads = all_threads
        self._on_python_profiler = on_python_profiler
        self._region: Any = None

    @property
    def main_has_stacks(self) -> bool:
        """Return whether the recorded steps have stacks of their own."""
        return self.main is not None and self.main.stacks

    def prepare_main(self, *, stacks: bool) -> None:
        """Prepare to record steps, unless that was done.

        Args:
            stacks: Whether these steps are recorded with stacks.
        """
        if self.main is None:
            self.main = self._make_recording(stacks=stacks)
            self.main.prepare()

    def start_main(self, *, stacks: bool) -> None:
        """Start to record steps."""
        self.prepare_main(stacks=stacks)
        if self.main is not None and not self.main.is_started:
            self.main.start()

    def start_lines(self) -> None:
        """Start to record a step with stacks."""
        self.lines = self._make_recording(stacks=True)
        self.lines.start()

    def stop_main(self) -> None:
        """Stop recording steps."""
        if self.main is not None:
            self.main.stop()
            self.main.keep_device_times()

    def mute_main(self) -> None:
        """Collect nothing more in the recorded steps; if they are of all threads, on any thread."""
        main = self.main
        if main is not None:
            main.mute()

    def mute_lines(self) -> None:
        """Collect no more operators in the step with stacks."""
        if self.lines is not None:
            self.lines.mute()

    def stop_lines(self) -> None:
        """Stop recording the step with stacks."""
        if self.lines is not None:
            self.lines.stop()
            if self.main is None:  # it may have to stand for the recorded steps
                self.lines.keep_device_times()

    def discard_ready(self) -> None:
        """End a profiler that was prepared and never started; torch cannot cancel it."""
        if self.main is not None and not self.main.is_started:
            self.main.start()
            self.main.stop()
            self.main = None

    def promote_lines(self) -> None:
        """Take the step with stacks for the recorded step: there is no other."""
        self.main, self.lines = self.lines, None

    def take_main(self) -> ProfilerRecording | None:
        """Return the recorded steps; they are no longer of this capture."""
        main, self.main = self.main, None
        return main

    def drop_main(self) -> None:
        """Free the recorded steps."""
        if self.main is not None:
            self.main.release()
            self.main = None

    def drop_lines(self, *, is_last: bool = False) -> None:
        """Free the step with stacks.

        Args:
            is_last: Whether the program has ended.
        """
        if self.lines is not None:
            self.lines.release(is_last=is_last)
            self.lines = None

    def forget_open(self) -> list[ProfilerRecording]:
        """Leave the windows that are not stopped, as this thread cannot; returns what is open."""
        windows = [window for window in (self.main, self.lines) if window is not None]
        self.main = self.main if self.main is not None and self.main.is_stopped else None
        self.lines = self.lines if self.lines is not None and self.lines.is_stopped else None
        self._region = None
        return [window for window in windows if window.is_started and not window.is_stopped]

    def drop_all(self) -> None:
        """Stop and free everything, whatever fails meanwhile."""
        for action in (
            self.close_region,
            self.discard_ready,
            self.stop_main,
            self.stop_lines,
            self.drop_main,
            self.drop_lines,
        ):
            with contextlib.suppress(Exception):
                action()
        self.main = self.lines = None

    def open_region(self, name: str) -> None:
        """Begin the region of a step or block in the open window."""
        # A region that profkit ends itself is not what a recording has left open.
        for recording in (self.main, self.lines):
            if recording is not None:
                recording.closed.add(name)
        self._region = Region(name)
        self._region.__enter__()

    def close_region(self) -> None:
        """End the region, if one is open."""
        region, self._region = self._region, None
        if region is not None:
            region.__exit__(None, None, None)

    def _make_recording(self, *, stacks: bool) -> ProfilerRecording:
        warm_up()
        return ProfilerRecording(
            self._options,
            stacks=stacks,
            all_threads=self._all_threads,
            on_python_profiler=self._on_python_profiler,
        )
