"""Attributes Python objects that stay alive to the source lines that allocated them.

``tracemalloc`` records the line of every allocation, which makes a pure-Python program 1.3 to 2
times slower. So it is on for a few steps once host memory grows, and for all steps only on request.
It is then paused during inspections, which it would slow down tenfold. Stopping it discards its
records, so what was allocated since and is alive is added up before.

Source: ``tracemalloc`` of Python's library reference.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from profkit.capture.memory.monitor.own_tracing import OwnTracing
from profkit.capture.process import module_calls, program, wrappers
from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.capture.source.user_code import Place, Stack, UserCode
from profkit.patterns import regex

FRAMES: Final = 4
"""Frames recorded per allocation, as library frames lie between it and the user's line. With 1
frame the program takes 1.3 times as long, with 25 frames 4.9 times."""
DEEP_FRAMES: Final = 16
"""Frames recorded in a few steps: ``pandas.concat`` allocates eight frames below its caller."""
_HALF_STEPS: Final = 4
"""Steps until the first of the two moments that are compared, and between them."""
_MAX_TRACE_BYTES: Final = 64 << 20
"""A trace above this, of half a million objects, takes seconds to evaluate and is given up."""
NO_LINE: Final[Place] = "", 0, ""
"""Allocations without a user's frame among those recorded."""
PROFKIT_LINE: Final[Place] = "profkit", 0, ""
"""Allocations of profkit itself."""
COMPILER_LINE: Final[Place] = "torch.compile", 0, ""
"""Allocations in which ``torch.compile`` compiles, too deep below the user's call for its frame."""
_COMPILER: Final = regex(r"[/\\]torch[/\\](_dynamo|_inductor|_functorch|_subclasses|fx)[/\\]")
_STARTS_PROGRAM: Final = program.__file__
_CALLS_PROGRAM: Final = (wrappers.__file__, module_calls.__file__)
"""Code of profkit from which the program is called back: what it allocates is its own."""


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
        self._tracing = OwnTracing()
        self._user_code = UserCode()

    def begin(self) -> None:
        """Start tracing, unless the program itself has started it."""
        if self._enabled:
            self._tracing.begin(FRAMES)

    def end(self) -> None:
        """Stop tracing, if it was started here."""
        self._tracing.end()

    def own_bytes(self) -> int:
        """Return how many bytes the trace itself takes."""
        return self._tracing.own_bytes()

    @property
    def is_enabled(self) -> bool:
        """Tell whether the allocations of all steps are traced."""
        return self._enabled

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Add up what was allocated since and is alive, and trace nothing while open."""
        if not self._tracing.is_on:
            yield
            return

        # What is alive now is added up, as the trace forgets it when it ends.
        self._add_up()
        self._tracing.end()
        try:
            yield
        finally:
            self._tracing.begin(FRAMES)

    def _add_up(self) -> None:
        """Add what is alive at the end of a period of tracing."""
        for line, n_bytes in lines_alive(self._tracing, self._user_code).items():
            if line not in {NO_LINE, COMPILER_LINE}:
                self.bytes_by_line[line] = self.bytes_by_line.get(line, 0) + n_bytes


class GrowthSampler:
    """Finds the lines whose Python memory grows, by tracing all allocations of a few steps.

    What is alive at the end of a step contains that step's variables, so two moments are compared.
    What was replaced by something larger then counts with the difference alone.

    Attributes:
        next_step: The step at whose end :meth:`advance` is due; 0 while off.
        per_step: Bytes per step by line, once they are known; those without a user's line have an
            empty one.
    """

    def __init__(self) -> None:
        self.next_step = 0
        self.per_step: dict[Place, float] | None = None
        self._half: tuple[int, dict[Place, int]] | None = None
        self._tracing = OwnTracing()
        self._user_code = UserCode()

    def begin(self, step: int) -> None:
        """Trace the steps after this one, unless allocations are being traced already."""
        if self._tracing.begin(DEEP_FRAMES):
            self._half = None
            self.next_step = step + _HALF_STEPS

    def advance(self, step: int) -> None:
        """Compare what is alive, or give up, at the end of a step at which this is due."""
        if not self._tracing.is_on or self._tracing.own_bytes() > _MAX_TRACE_BYTES:
            self.end()
        elif self._half is None:
            self._half = step, self._alive()
            self.next_step = step + _HALF_STEPS
        else:
            began, before = self._half
            now = self._alive()
            self.end()
            self.per_step = {
                line: (now.get(line, 0) - before.get(line, 0)) / (step - began)
                for line in {*now, *before}
            }

    def end(self) -> None:
        """Stop tracing, if it is on."""
        self._tracing.end()
        self.next_step = 0

    def own_bytes(self) -> int:
        """Return how many bytes tracing itself takes."""
        return self._tracing.own_bytes()

    def _alive(self) -> dict[Place, int]:
        """Return the bytes by line that are alive since, without profkit's own."""
        return lines_alive(self._tracing, self._user_code)


def lines_alive(tracing: OwnTracing, user_code: UserCode) -> dict[Place, int]:
    """Return the bytes by line that were allocated while tracing and are alive.

    What profkit itself has allocated is left out.
    """
    bytes_by_line: dict[Place, int] = {}
    for traceback, n_bytes in tracing.statistics():
        line = user_line(traceback, user_code)
        if line is None:
            is_compiler = any(_COMPILER.search(frame.filename) for frame in traceback)
            line = COMPILER_LINE if is_compiler else NO_LINE
        if line != PROFKIT_LINE:
            bytes_by_line[line] = bytes_by_line.get(line, 0) + n_bytes
    return bytes_by_line


def user_line(traceback: tracemalloc.Traceback, user_code: UserCode) -> Place | None:
    """Return the innermost line of the user's code.

    Returns:
        None if there is none; :data:`PROFKIT_LINE` if profkit itself has allocated.
    """
    return next(_places(traceback, user_code), None)


def user_stack(traceback: tracemalloc.Traceback, user_code: UserCode) -> Stack:
    """Return the user frames of a traceback, innermost first; empty if profkit has allocated."""
    stack = tuple(_places(traceback, user_code))
    return () if PROFKIT_LINE in stack else stack


def _places(traceback: tracemalloc.Traceback, user_code: UserCode) -> Iterator[Place]:
    """Yield user frames, innermost first, without function names, which are not recorded."""
    # The most recent call is last.
    for frame in reversed(traceback):
        if frame.filename == _STARTS_PROGRAM:
            return
        if frame.filename in _CALLS_PROGRAM:
            continue
        if frame.filename.startswith(PROFKIT_FOLDER):
            yield PROFKIT_LINE
        elif user_code.is_user_file(frame.filename):
            yield frame.filename, frame.lineno, ""
