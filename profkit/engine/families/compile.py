"""Functions of ``torch.compile`` as rules on compilation need them: ids, versions, source lines.

An id such as ``3/1`` is torch's: version 1 of function 3.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.frames import parse_frame
from profkit.index.host.source import NO_FRAME
from profkit.model.capture_info import CodePlace, Compiled, Compiles, GraphBreak
from profkit.model.events import NO_ROW, Category
from profkit.model.location import Location
from profkit.model.torch_names import RESUMED

MAX_REASON_CHARACTERS: Final = 160
_VERSION: Final = re.compile(r"^\S*\d+/\d+: ")
_COMMENT: Final = re.compile(r" {2,}# .*$")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MAX_READ: Final = 2048
"""Characters of a reason that are read: more than any line of torch's."""
_LIMIT: Final = re.compile(r"(recompile|cache.?size).?limit", re.IGNORECASE)


def function_id(compile_id: str) -> str:
    """The function's part of an id: ``3`` of ``3/1``."""
    return compile_id.rpartition("/")[0]


def version_of(compile_id: str) -> int | None:
    """How often the function had been compiled before: 1 for ``3/1``; None if not known."""
    last = compile_id.rpartition("/")[2]
    return int(last) if "/" in compile_id and _NUMBER.fullmatch(last) else None


def is_resumed(name: str) -> bool:
    """Whether torch generated a function from the code after a graph break."""
    return name.startswith(RESUMED)


def original(place: CodePlace) -> CodePlace:
    """A place with the name of the user's function, where torch generated one from it."""
    file, line, name = place
    if not is_resumed(name):
        return place
    for prefix in RESUMED:
        name = name.removeprefix(prefix)
    return file, line, name.rpartition("_at_")[0] or name.rstrip(">")


def location_of(place: CodePlace) -> Location:
    """A place as the location of a finding."""
    file, line, function = place
    return Location(file or None, line if file else None, function or None)


def first_line(reason: str) -> str:
    """The first line of a reason of torch's, without its version and source comment."""
    line = (
        _COMMENT.sub("", _VERSION.sub("", reason[:_MAX_READ].partition("\n")[0]))
        .strip()
        .rstrip(".")
    )
    return shortened(line)


def shortened(text: str) -> str:
    """A text of torch's, cut to :data:`MAX_REASON_CHARACTERS`."""
    if len(text) <= MAX_REASON_CHARACTERS:
        return text
    return text[: MAX_REASON_CHARACTERS - 1] + "…"


def matching_fix(reason: str, fixes: Mapping[str, str]) -> str | None:
    """The first fix whose regular expression a reason of torch's contains, or None."""
    return next((fix for pattern, fix in fixes.items() if re.search(pattern, reason)), None)


def is_limit(failure: str) -> bool:
    """Whether torch stopped compiling a function because of too many recompilations."""
    return _LIMIT.search(failure) is not None


@dataclass(frozen=True)
class CompiledCode:
    """The compiled functions of a recording."""

    ctx: Context

    @cached_property
    def compiled(self) -> tuple[Compiled, ...]:
        """Torch's records of compilations; empty where profkit did not record."""
        return () if self._recorded is None else tuple(self._recorded.compiled)

    @cached_property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Torch's records of graph breaks; empty where profkit did not record."""
        return () if self._recorded is None else tuple(self._recorded.breaks)

    @property
    def _recorded(self) -> Compiles | None:
        capture = self.ctx.trace.capture
        return None if capture is None else capture.compiles

    @cached_property
    def _by_id(self) -> dict[str, list[Compiled]]:
        found = defaultdict(list)
        for one in self.compiled:
            found[one.number].append(one)
        return found

    def version(self, compile_id: str, at_ns: int) -> Compiled | None:
        """The record of a compilation, or None.

        Ids restart after ``torch._dynamo.reset()``: of several the nearest in time is returned.

        Args:
            at_ns: When it ran or was compiled, in nanoseconds from the trace's start.
        """
        at = self.ctx.trace.base_ns + at_ns
        candidates = self._by_id.get(compile_id, ()) if compile_id else ()
        return min(candidates, key=lambda one: abs((one.start_ns or 0) - at), default=None)

    @cached_property
    def _by_function(self) -> dict[str, Compiled]:
        return {function_id(one.number): one for one in self.compiled if one.code[0] and one.number}

    def function(self, compile_id: str) -> Compiled | None:
        """A version of the same function whose source line is known, or None."""
        return self._by_function.get(function_id(compile_id)) if compile_id else None

    def resumes_at(self, place: int) -> CodePlace | None:
        """The line after which a run resumes behind a graph break; None if it does not.

        Args:
            place: The run's place in ``ctx.compiled_runs``.
        """
        runs = self.ctx.compiled_runs
        known = self.function(runs.numbers[place])
        if known is not None:
            return known.code if is_resumed(known.code[2]) else None
        row = int(runs.resumed_by[place])
        frame = parse_frame(self.ctx.events.name_of(row)) if row != NO_ROW else None
        return None if frame is None else (frame.file, frame.line or 0, frame.function)

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
        """Whether operators of a function ran in steps; None without source lines."""
        ctx = self.ctx
        if not ctx.has_lines:
            return None
        is_own = np.array(
            [
                (frame.file, frame.function) == (one.code[0], one.code[2])
                or (one.caller is not None and (frame.file, frame.line) == one.caller[:2])
                for frame in ctx.source.frames
            ],
            dtype=np.bool_,
        )
        rows = np.flatnonzero(ctx.source.frame != NO_FRAME)
        rows = rows[is_own[ctx.source.frame[rows]]]
        return bool((ctx.step_of(rows) >= 0).any())
