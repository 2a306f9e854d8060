"""Functions of ``torch.compile``: their numbers, their versions, and where they are."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.frames import parse_frame
from profkit.index.host.source import NO_FRAME
from profkit.model.capture_info import CodePlace, Compiled, Compiles, GraphBreak
from profkit.model.events import NO_ROW, Category
from profkit.model.location import Location
from profkit.model.torch_names import RESUMED


def function_of(number: str) -> str:
    """The function's own number in that of one of its versions: ``3`` of ``3/1``.

    Args:
        number: torch's number, or empty.
    """
    return number.rpartition("/")[0]


def version_of(number: str) -> int | None:
    """How often a function had been compiled before: 1 of ``3/1``; None where it is not known.

    Args:
        number: torch's number, or empty.
    """
    last = number.rpartition("/")[2]
    return int(last) if "/" in number and last.isascii() and last.isdigit() else None


def is_resumed(name: str) -> bool:
    """Whether torch made a function of what is left of one behind the end of a graph.

    Args:
        name: The function's name.
    """
    return name.startswith(RESUMED)


def without_resuming(place: CodePlace) -> CodePlace:
    """A function that torch made, under the name of the one that it comes from; others as they are.

    Args:
        place: File, line and function.
    """
    file, line, name = place
    if not is_resumed(name):
        return place
    for prefix in RESUMED:
        name = name.removeprefix(prefix)
    return file, line, name.rpartition("_at_")[0] or name.rstrip(">")


def location_of(place: CodePlace) -> Location:
    """A place of the program as that of a finding.

    Args:
        place: File, line and function.
    """
    file, line, function = place
    return Location(file or None, line if file else None, function or None)


@dataclass(frozen=True)
class CompiledCode:
    """What the recording knows of the functions that were compiled.

    Attributes:
        ctx: The recording.
    """

    ctx: Context

    @cached_property
    def told(self) -> tuple[Compiled, ...]:
        """What torch remembered of compiling; nothing where profkit did not record."""
        return () if self._read is None else tuple(self._read.compiled)

    @cached_property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Where graphs ended; nothing where profkit did not record."""
        return () if self._read is None else tuple(self._read.breaks)

    @property
    def _read(self) -> Compiles | None:
        capture = self.ctx.trace.capture
        return None if capture is None else capture.compiles

    @cached_property
    def _by_number(self) -> dict[str, list[Compiled]]:
        found = defaultdict(list)
        for one in self.told:
            found[one.number].append(one)
        return found

    def version(self, number: str, at_ns: int) -> Compiled | None:
        """What torch remembered of one compilation, or None.

        Numbers begin anew after ``torch._dynamo.reset()``: of several the nearest in time is meant.

        Args:
            at_ns: When it ran or was compiled, in nanoseconds from the trace's start.
        """
        at = self.ctx.trace.base_ns + at_ns
        candidates = self._by_number.get(number, ()) if number else ()
        return min(candidates, key=lambda one: abs((one.start_ns or 0) - at), default=None)

    @cached_property
    def _code(self) -> dict[str, Compiled]:
        return {function_of(one.number): one for one in self.told if one.code[0] and one.number}

    def function(self, number: str) -> Compiled | None:
        """A version of the same function of which it is known where it is, or None.

        Args:
            number: The number of any of its versions.
        """
        return self._code.get(function_of(number)) if number else None

    def goes_on_at(self, place: int) -> CodePlace | None:
        """The line behind which a run goes on after the end of a graph, or None if it does not.

        Args:
            place: The run's place in ``ctx.compiled_runs``.
        """
        runs = self.ctx.compiled_runs
        known = self.function(runs.numbers[place])
        if known is not None:
            return known.code if is_resumed(known.code[2]) else None
        row = int(runs.resumed_by[place])
        frame = parse_frame(self.ctx.events.name_of(row)) if row != NO_ROW else None
        return None if frame is None else (frame.file, frame.line, frame.function)

    def is_known(self, place: int) -> bool:
        """Whether the recording tells which function a run is of.

        Args:
            place: The run's place in ``ctx.compiled_runs``.
        """
        return self._has_calls or self.function(self.ctx.compiled_runs.numbers[place]) is not None

    @cached_property
    def _has_calls(self) -> bool:
        return bool((self.ctx.events.category == Category.PYTHON).any())

    def runs_in_steps(self, one: Compiled) -> bool | None:
        """Whether operators of a function ran in steps; None where no lines are known.

        Args:
            one: The function, by its own place or that of its call.
        """
        ctx = self.ctx
        if not ctx.has_lines:
            return None
        wanted = np.array(
            [
                (frame.file, frame.function) == (one.code[0], one.code[2])
                or (one.caller is not None and (frame.file, frame.line) == one.caller[:2])
                for frame in ctx.source.frames
            ],
            dtype=np.bool_,
        )
        rows = np.flatnonzero(ctx.source.frame != NO_FRAME)
        rows = rows[wanted[ctx.source.frame[rows]]]
        return bool((ctx.step_of(rows) >= 0).any())
