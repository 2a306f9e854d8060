"""Functions of ``torch.compile`` as rules on compilation need them: ids, versions, source lines.

An id such as ``3/1`` is torch's: version 1 of function 3.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.distinct import distinct, marked
from profkit.index.host.frames import parse_frame
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import (
    Intervals,
    covered_by,
    intersect,
    of_pairs,
    subtract,
    union,
    unite,
)
from profkit.index.runtime_calls import rows_named
from profkit.model.capture_info import CodePlace, Compiled, Compiles, GraphBreak
from profkit.model.events import NO_ROW, Category
from profkit.model.location import Location
from profkit.model.torch_names import RESUMED
from profkit.patterns import regex

MAX_REASON_CHARACTERS: Final = 160
_VERSION: Final = regex(r"^\S*\d+/\d+: ")
_COMMENT: Final = regex(r" {2,}# .*$")
_NUMBER: Final = regex(r"[0-9]{1,9}")
_MAX_READ: Final = 2048
"""Characters of a reason that are read: more than any line of torch's."""
_COMPILERS: Final = {
    "Triton": regex(
        r"(^|[/\\])triton[/\\](compiler[/\\]compiler\.py\(\d+\): compile"
        r"|runtime[/\\](jit\.py\(\d+\): _do_compile|autotuner\.py\(\d+\): _bench))$"
    ),
    "TorchScript": regex(
        r"(^|[/\\])torch[/\\]jit[/\\](_script\.py\(\d+\): script|_trace\.py\(\d+\): trace)$"
    ),
    "C++ extensions": regex(
        r"(^|[/\\])torch[/\\]utils[/\\]cpp_extension\.py\(\d+\): (load|load_inline)$"
    ),
}
"""Functions that compile, by what they compile."""
_MIN_COMPILED_NS: Final = 50_000_000
"""TorchScript's fuser took 303 ms for two functions in a recording of a GPU; the Python between two
calls of a model takes less."""
_FALLBACK: Final = regex(r"^fallback_function$")
_LIMIT: Final = regex(r"(recompile|cache.?size).?limit", re.IGNORECASE)


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


@dataclass(frozen=True)
class Compilation:
    """A compilation in a step, with torch's record of it if there is one.

    Attributes:
        row: The outermost row of it.
        compile_id: Such as ``3/1``, or empty.
        location: The line that called the function.
    """

    row: int
    compile_id: str
    record: Compiled | None
    location: Location

    @property
    def key(self) -> tuple[str | None, int | None]:
        """The line, without the function."""
        return self.location.file, self.location.line

    @property
    def is_identified(self) -> bool:
        """Whether it is known of which function it is, and so whether that was compiled before."""
        return bool(self.compile_id) or self.record is not None


def recompilations(ctx: Context, code: CompiledCode) -> list[list[Compilation]]:
    """The recompilations in steps by the line that causes them, in the order of time."""
    compilations = ctx.compilations
    places = np.flatnonzero(compilations.is_function & (ctx.step_of(compilations.rows) >= 0))
    every = [
        _compilation(ctx, code, int(compilations.rows[place]), compilations.numbers[place])
        for place in places.tolist()
    ]
    known = _by_line(_without_warm_up(ctx, [one for one in every if _is_recompilation(one)]))
    unknown = [one for one in every if not one.is_identified]
    return [*known, *_by_line(_in_several_steps(ctx, unknown))]


def _compilation(ctx: Context, code: CompiledCode, row: int, compile_id: str) -> Compilation:
    record = code.version(compile_id, int(ctx.events.ts_ns[row]))
    if record is not None and record.caller is not None:
        return Compilation(row, compile_id, record, location_of(record.caller))
    return Compilation(row, compile_id, record, ctx.location(row))


def _is_recompilation(one: Compilation) -> bool:
    """Whether the function was compiled before, and the compilation did not fail."""
    if one.record is not None:
        return one.record.again and not one.record.failure
    return (version_of(one.compile_id) or 0) > 0


def _without_warm_up(ctx: Context, every: list[Compilation]) -> list[Compilation]:
    """Without functions of which only the first two versions were compiled, in the recording."""
    n_times: dict[str, int] = defaultdict(int)
    for one in every:
        n_times[function_id(one.compile_id)] += 1
    started = {function_id(each) for each in ctx.compilations.numbers if version_of(each) == 0}
    return [
        one
        for one in every
        if n_times[function_id(one.compile_id)] > 1
        or version_of(one.compile_id) != 1
        or function_id(one.compile_id) not in started
    ]


def _in_several_steps(ctx: Context, every: list[Compilation]) -> list[Compilation]:
    """Those of lines that compile in several steps, without the first of these steps."""
    steps = ctx.step_of(np.array([one.row for one in every], dtype=np.intp)).tolist()
    first: dict[object, int] = {}
    for one, step in zip(every, steps, strict=True):
        first.setdefault(one.key, step)
    return [one for one, step in zip(every, steps, strict=True) if step > first[one.key]]


def _by_line(every: Iterable[Compilation]) -> list[list[Compilation]]:
    groups: dict[object, list[Compilation]] = defaultdict(list)
    for one in every:
        groups[one.key].append(one)
    return list(groups.values())


def backward_rows(ctx: Context, groups: list[list[Compilation]]) -> list[list[int]]:
    """Compilations of backward passes, by line, else by step."""
    found: list[list[int]] = [[] for _ in groups]
    compilations = ctx.compilations
    rows = compilations.rows[~compilations.is_function]
    steps = [{*ctx.step_of(np.array([one.row for one in group])).tolist()} for group in groups]
    for row, step in zip(rows.tolist(), ctx.step_of(rows).tolist(), strict=True):
        here = [place for place in range(len(groups)) if step in steps[place]]
        location = ctx.location(row)
        line = location.file, location.line
        of_line = [place for place in here if groups[place][0].key == line]
        if here:
            found[(of_line or here)[0]].append(row)
    return found


def compile_times(ctx: Context) -> dict[str, Intervals]:
    """Time of the steps, or of a recording without steps, in which something is compiled.

    It is given by what compiles.

    ``torch.compile``'s own time contains that of Triton. Recompilations are not included.
    TorchScript compiles in the background of a call, after it has run it twice: nothing is recorded
    until the call's first operator, and the fallback for inputs unlike those of the first calls
    shows that it was compiled.

    Source: ``torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp`` (``fallback_function``).
    """
    events, compilations = ctx.events, ctx.compilations
    groups = recompilations(ctx, CompiledCode(ctx))
    again = [one.row for group in groups for one in group]
    again += [row for rows in backward_rows(ctx, groups) for row in rows]
    first = compilations.rows[
        ~marked(np.array(again, dtype=np.intp), len(events))[compilations.rows]
    ]
    found = {"torch.compile": covered_by(events, first)}
    known = covered_by(events, compilations.rows)
    for name, pattern in _COMPILERS.items():
        rows = np.flatnonzero(rows_named(events, pattern, Category.PYTHON))
        found[name] = subtract(covered_by(events, rows), known)
        known = unite(known, found[name])
    found["TorchScript"] = unite(found["TorchScript"], _before_fallbacks(ctx))
    if len(ctx.steps):
        steps = union(ctx.steps.starts_ns, ctx.steps.ends_ns)
        found = {name: intersect(time, steps) for name, time in found.items()}
    return {name: time for name, time in found.items() if len(time)}


def _before_fallbacks(ctx: Context) -> Intervals:
    """Time without any host event before calls of TorchScript that were just compiled.

    That is before the first call of a function with a fallback, if it is much longer than before
    later ones, which the program spends otherwise.
    """
    events, tree = ctx.events, ctx.tree
    fallbacks = np.flatnonzero(rows_named(events, _FALLBACK, Category.OP))
    calls = distinct(tree.outermost_op[fallbacks])
    pauses = [_pause_before(ctx, call) for call in calls.tolist()]
    found = []
    for name in distinct(events.name[calls]).tolist():
        own = [each for each, call in zip(pauses, calls, strict=True) if events.name[call] == name]
        own.sort()
        lengths = [end - start for start, end in own]
        if lengths[0] >= max(_MIN_COMPILED_NS, 2 * max(lengths[1:], default=0)):
            found.append(own[0])
    return of_pairs(tuple(found))


def _pause_before(ctx: Context, call: int) -> tuple[int, int]:
    """Start and end of the time before a call in which its thread began and ended nothing."""
    events, rows = ctx.events, ctx.tree.rows
    own = rows[(events.lane[rows] == events.lane[call]) & (rows != call)]
    until = int(events.ts_ns[call])
    ends, starts = events.end_ns[own], events.ts_ns[own]
    latest = max(ends[ends <= until].max(initial=0), starts[starts < until].max(initial=0))
    return (int(latest) if len(own) else until), until
