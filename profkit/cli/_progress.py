"""What a command is at, on a terminal and nowhere else: how far it is, and how long it will take.

Nothing is shown of what takes less than :data:`QUICK_S`, nothing stays when it is done, and a pipe
or a file never sees any of it.
"""

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from profkit.cli._output import columns_of
from profkit.names import middle_cut, visible
from profkit.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUICK_S: Final = 0.3
"""What takes less needs no bar; one that flashes up is only in the way."""
_LONGEST_NAME: Final = 32
_SHORTEST_NAME: Final = 8
_BARS: Final = ((100, 24), (70, 12))
"""From so many columns on a bar of so many; a narrower terminal has room for words alone."""
_WORDS_WIDTH: Final = len("reading  1,000 MiB of 1,000 MiB  59 min 59 s") + 3
"""What stands beside the name and the bar."""
_MINUTE_S: Final = 60
_ANALYZING: Final = "analyzing"
_RULE: Final = "rule "


class Progress:
    """Says on a terminal what is going on; does nothing where there is none."""

    def reading(self, path: str) -> None:
        """A file is read from now on."""

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        """So many of the file's bytes have been read.

        Args:
            n_bytes: How many.
            of_bytes: How many it has; 0 if that is not known.
        """

    def on_stage(self, stage: str) -> None:
        """A stage has ended: of reading, or a rule, or what is worked out before and after them.

        Args:
            stage: Its name.
        """

    def writing(self, what: str) -> None:
        """A product is made from now on, and it is not known how long it will be.

        Args:
            what: What it is, such as the name of a format.
        """

    def written(self, pieces: Iterator[bytes], of_bytes: int = 0) -> Iterator[bytes]:  # noqa: ARG002  (what a terminal is told)
        """Pass the pieces of a product on, and count them.

        Args:
            of_bytes: How many bytes it will have, about; 0 if that is not known.
        """
        return pieces


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """Show what is going on for as long as the block lasts.

    Args:
        stream: Where to; stderr by default.
    """
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
    """A line that is drawn anew, several times a second, once the work has shown to be long."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._ended = False
        self._doing = ""
        self._done, self._of, self._amount = 0, 0, ""
        self._timer = threading.Timer(QUICK_S, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def reading(self, path: str) -> None:
        name = visible(path.rstrip("/").rpartition("/")[2])
        columns = columns_of(self._stream)
        room = min(columns - _WORDS_WIDTH - _bar_width(columns), _LONGEST_NAME)
        self._begin(f"reading {middle_cut(name, room)}" if room >= _SHORTEST_NAME else "reading")

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        whole = f" of {format_bytes(of_bytes)}" if of_bytes else ""
        self._now(min(n_bytes, of_bytes or n_bytes), of_bytes, f"{format_bytes(n_bytes)}{whole}")

    def on_stage(self, stage: str) -> None:
        if self._doing != _ANALYZING:  # reading is told of when it is over
            self._begin(_ANALYZING)
        if not stage.startswith(_RULE):
            return
        from profkit.engine.registry import rules

        done, of = self._done + 1, len(rules())
        self._now(done, of, f"{format_count(done)} of {format_count(of)} rules")

    def writing(self, what: str) -> None:
        self._begin(f"writing {visible(what)}")

    def written(self, pieces: Iterator[bytes], of_bytes: int = 0) -> Iterator[bytes]:
        n_bytes = 0
        for piece in pieces:
            n_bytes += len(piece)
            self.on_progress(n_bytes, of_bytes)
            yield piece

    def end(self) -> None:
        """Take back what is shown."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()

    def _begin(self, doing: str) -> None:
        """Something new begins; how far it will go is not known yet."""
        with self._lock:
            self._doing, self._done, self._of, self._amount = doing, 0, 0, ""
            if self._bar is not None:
                for task in self._bar.task_ids:
                    self._bar.remove_task(task)
                self._add_task(self._bar)

    def _now(self, done: int, of: int, amount: str) -> None:
        self._done, self._of, self._amount = done, of, amount
        bar = self._bar
        if bar is not None:
            for task in bar.task_ids:
                bar.update(task, completed=done, total=of or None, amount=amount)

    def _appear(self) -> None:
        """Show the line: what was begun has not ended soon."""
        bar = _bar(self._stream)
        with self._lock:
            if not self._ended:
                self._add_task(bar)
                self._bar = bar
                bar.start()

    def _add_task(self, bar: "Bar") -> None:
        bar.add_task(self._doing, total=self._of or None, completed=self._done, amount=self._amount)


def _bar(stream: TextIO) -> "Bar":
    """A line of rich: what is done, a bar, how far it is, how long it will take."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Left(ProgressColumn):
        """The time that is left; while that is not known, the time that has passed."""

        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            """As in ``12 s left``."""
            if task.total is not None and task.time_remaining is not None:
                return Text(f"{_seconds(task.time_remaining)} left", style="dim")
            return Text(_seconds(task.elapsed or 0.0), style="dim")

    class Steady(Console):
        """A console that leaves the cursor alone: a command that is killed cannot show it again."""

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
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        refresh_per_second=8,
    )


def _bar_width(columns: int) -> int:
    """How long the bar is on a terminal of so many columns; 0 where there is no room for one."""
    return next((width for enough, width in _BARS if columns >= enough), 0)


def _seconds(seconds: float) -> str:
    """Whole seconds, or from a minute on minutes and seconds: as often as it changes, as short."""
    whole = math.ceil(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
