"""Shows a progress line on a terminal: the current stage, how much is done, the time left.

The line appears after :data:`QUICK_S`, is removed at the end, and is never written to a pipe or a
file.
"""

import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from profkit.cli._output import columns_of
from profkit.names import middle_cut, visible
from profkit.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUICK_S: Final = 0.3
"""A line that is shown for a shorter time would only flicker."""
_MAX_NAME: Final = 32
_MIN_NAME: Final = 8
_BARS: Final = ((100, 24), (70, 12))
"""Minimum width of the terminal, and the width of the bar; on a narrower terminal there is none."""
_TEXT_WIDTH: Final = len("reading  1,000 MiB of 1,000 MiB  59 min 59 s") + 3
"""The width of everything except the file's name and the bar."""
_MINUTE_S: Final = 60
_ANALYZING: Final = "analyzing"
_RULE: Final = "rule "


class Progress:
    """The progress of a command. This class shows nothing; a subclass shows it on a terminal.

    Attributes:
        took: Nanoseconds of each stage so far.
    """

    def __init__(self) -> None:
        self.took: Counter[str] = Counter()

    def reading(self, path: str) -> None:
        """Start reading a file."""

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        """Update the number of bytes; ``of_bytes`` is the total, or 0 if it is not known."""

    def on_stage(self, stage: str, ns: int) -> None:
        """End a stage of reading or analysis, such as a rule, and count its duration."""
        self.took[stage] += ns

    def finished(self, n: int, of: int, stages_ns: Mapping[str, int]) -> None:  # noqa: ARG002  (used on a terminal)
        """Count the stages of a recording that another process has analyzed.

        Args:
            n: How many recordings are finished, of all.
        """
        self.took.update(stages_ns)

    def writing(self, what: str) -> None:
        """Start writing an output, such as a format by its name."""

    def written(self, pieces: Iterator[bytes], of_bytes: int = 0) -> Iterator[bytes]:  # noqa: ARG002  (used on a terminal)
        """Yield the pieces of an output and count their bytes.

        Args:
            of_bytes: The approximate total; 0 if it is not known.
        """
        return pieces


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """Show progress during a block, on stderr by default."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield Progress()
        return
    shown = _OnTerminal(stream)
    try:
        yield shown
    finally:
        shown.end()


class _OnTerminal(Progress):
    """A line that is redrawn several times per second, after a short delay."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._ended = False
        self._stage = ""
        self._done, self._of, self._amount = 0, 0, ""
        self._timer = threading.Timer(QUICK_S, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def reading(self, path: str) -> None:
        name = visible(path.rstrip("/").rpartition("/")[2])
        columns = columns_of(self._stream)
        # A name that is cut to a few characters says nothing.
        width = min(columns - _TEXT_WIDTH - _bar_width(columns), _MAX_NAME)
        self._begin(f"reading {middle_cut(name, width)}" if width >= _MIN_NAME else "reading")

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        total = f" of {format_bytes(of_bytes)}" if of_bytes else ""
        self._update(min(n_bytes, of_bytes or n_bytes), of_bytes, f"{format_bytes(n_bytes)}{total}")

    def on_stage(self, stage: str, ns: int) -> None:
        super().on_stage(stage, ns)
        if self._stage != _ANALYZING:  # stages of reading are reported after their end
            self._begin(_ANALYZING)
        if not stage.startswith(_RULE):
            return
        from profkit.engine.registry import rules

        done, of = self._done + 1, len(rules())
        self._update(done, of, f"{format_count(done)} of {format_count(of)} rules")

    def finished(self, n: int, of: int, stages_ns: Mapping[str, int]) -> None:
        super().finished(n, of, stages_ns)
        if not n:
            self._begin(_ANALYZING)
        self._update(n, of, f"{format_count(n)} of {format_count(of)} recordings")

    def writing(self, what: str) -> None:
        self._begin(f"writing {visible(what)}")

    def written(self, pieces: Iterator[bytes], of_bytes: int = 0) -> Iterator[bytes]:
        n_bytes = 0
        for piece in pieces:
            n_bytes += len(piece)
            self.on_progress(n_bytes, of_bytes)
            yield piece

    def end(self) -> None:
        """Remove the line."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()

    def _begin(self, stage: str) -> None:
        with self._lock:
            self._stage, self._done, self._of, self._amount = stage, 0, 0, ""
            if self._bar is not None:
                for task in self._bar.task_ids:
                    self._bar.remove_task(task)
                self._add_task(self._bar)

    def _update(self, done: int, of: int, amount: str) -> None:
        self._done, self._of, self._amount = done, of, amount
        bar = self._bar
        if bar is not None:
            for task in bar.task_ids:
                bar.update(task, completed=done, total=of or None, amount=amount)

    def _appear(self) -> None:
        """Show the line after the delay."""
        bar = _build_bar(self._stream)
        # The command may end while rich is imported.
        with self._lock:
            if not self._ended:
                self._add_task(bar)
                self._bar = bar
                bar.start()

    def _add_task(self, bar: "Bar") -> None:
        bar.add_task(self._stage, total=self._of or None, completed=self._done, amount=self._amount)


def _build_bar(stream: TextIO) -> "Bar":
    """Build a line of rich: stage, bar, amount, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Left(ProgressColumn):
        """The time left; while that is not known, the time elapsed."""

        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            """Return ``12 s left``."""
            if task.total is not None and task.time_remaining is not None:
                return Text(f"{_seconds(task.time_remaining)} left", style="dim")
            return Text(_seconds(task.elapsed or 0.0), style="dim")

    class Steady(Console):
        """A console that does not hide the cursor: a killed command could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002  (as there)
            """Do nothing."""
            return False

    console = Steady(
        file=stream, width=columns_of(stream), highlight=False, markup=False, emoji=False
    )
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
    if bar_width := _bar_width(console.width):
        columns.append(BarColumn(bar_width=bar_width))
    columns += [TextColumn("{task.fields[amount]}", markup=False), Left()]

    # The command writes to stdout itself, so rich must neither redirect nor keep anything.
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        refresh_per_second=8,
    )


def _bar_width(columns: int) -> int:
    """Return the width of the bar on a terminal with this many columns; 0 for no bar."""
    return next((width for minimum, width in _BARS if columns >= minimum), 0)


def _seconds(seconds: float) -> str:
    """Format whole seconds: ``12 s`` or ``1 min 5 s``."""
    whole = math.ceil(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
