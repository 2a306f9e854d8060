"""Functions of ``torch.compile`` as rules on compilation need them: ids, versions, source lines.

An id such as ``3/1`` is torch's: version 1 of function 3.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property, reduce
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
    """Return the function's part of an id: ``3`` of ``3/1``."""
    return compile_id.rpartition("/")[0]


def version_of(compile_id: str) -> int | None:
    """Return how often a function had been compiled before: 1 for ``3/1``; None if not known."""
    last = compile_id.rpartition("/")[2]
    return int(last) if "/" in compile_id and _NUMBER.fullmatch(last) else None


def is_resumed(name: str) -> bool:
    """Return whether torch generated a function from the code after a graph break."""
    return name.startswith(RESUMED)


def original(place: CodePlace) -> CodePlace:
    """Return a place with the name of the user's function, if torch generated one from it."""
    file, line, name = place
    if not is_resumed(name):
        return place

    for prefix in RESUMED:
        name = name.removeprefix(prefix)
    return file, line, name.rpartition("_at_")[0] or name.rstrip(">")


def location_of(place: CodePlace) -> Location:
    """Return a place as the location of a finding."""
    file, line, function = place
    return Location(file or None, line if file else None, function or None)


def first_line(reason: str) -> str:
    """Return the first line of a reason of torch's, without its version and source comment."""
    line = _VERSION.sub("", reason[:_MAX_READ].partition("\n")[0])
    return shortened(_COMMENT.sub("", line).strip().rstrip("."))


def shortened(text: str) -> str:
    """Cut a text of torch's to :data:`MAX_REASON_CHARACTERS`."""
    if len(text) <= MAX_REASON_CHARACTERS:
        return text
    return text[: MAX_REASON_CHARACTERS - 1] + "…"


def matching_fix(reason: str, fixes: Mapping[str, str]) -> str | None:
    """Return the first fix whose regular expression a reason of torch's contains, or None."""
    return next((fix for pattern, fix in fixes.items() if re.search(pattern, reason)), None)


def is_limit(failure: str) -> bool:
    """Return whether torch stopped compiling a function after too many recompilations."""
    return _LIMIT.search(failure) is not None


@dataclass(frozen=True)
class CompiledCode:
    """The compiled functions of a recording."""

    ctx: Context

    @cached_property
    def compiled(self) -> tuple[Compiled, ...]:
        """Torch's records of compilations; empty unless profkit recorded."""
        return () if self._recorded is None else tuple(self._recorded.compiled)

    @cached_property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Torch's records of graph breaks; empty unless profkit recorded."""
        return () if self._recorded is None else tuple(self._recorded.breaks)

    @property
    def _recorded(self) -> Compiles | None:
        capture = self.ctx.trace.capture
        return None if capture is None else capture.compiles

    @cached_property
    def _by_id(self) -> dict[str, list[Compiled]]:
        by_id = defaultdict(list)
        for record in self.compiled:
            by_id[record.number].append(record)
        return by_id

    def version(self, compile_id: str, at_ns: int) -> Compiled | None:
        """Return the record of a compilation, or None.

        Ids restart after ``torch._dynamo.reset()``: the record nearest in time is returned.

        Args:
            at_ns: When it ran or was compiled, in nanoseconds from the trace's start.
        """
        at = self.ctx.trace.base_ns + at_ns
        candidates = self._by_id.get(compile_id, ()) if compile_id else ()
        return min(candidates, key=lambda record: abs((record.start_ns or 0) - at), default=None)

    @cached_property
    def _by_function(self) -> dict[str, Compiled]:
        return {
            function_id(record.number): record
            for record in self.compiled
            if record.code[0] and record.number
        }

    def function(self, compile_id: str) -> Compiled | None:
        """Return a version of the same function whose source line is known, or None."""
        return self._by_function.get(function_id(compile_id)) if compile_id else None

    def resumes_at(self, place: int) -> CodePlace | None:
        """Return the line after which a run resumes behind a graph break; None if it does not.

        Args:
            place: The run's place in ``ctx.compiled_runs``.
        """
        runs = self.ctx.compiled_runs

        version = self.function(runs.numbers[place])
        if version is not None:
            return version.code if is_resumed(version.code[2]) else None

        # Without torch's record, the recorded Python function that resumed tells the line.
        row = int(runs.resumed_by[place])
        frame = parse_frame(self.ctx.events.name_of(row)) if row != NO_ROW else None
        return None if frame is None else (frame.file, frame.line or 0, frame.function)

    def is_known(self, place: int) -> bool:
        """Return whether the recording tells which function a run calls.

        Args:
            place: The run's place in ``ctx.compiled_runs``.
        """
        number = self.ctx.compiled_runs.numbers[place]
        return self.ctx.events.has_python_calls or self.function(number) is not None

    def is_run_in_steps(self, record: Compiled) -> bool | None:
        """Return whether operators of a function ran in steps; None without source lines."""
        ctx = self.ctx
        if not ctx.has_lines:
            return None

        is_of_function = np.array(
            [
                (frame.file, frame.function) == (record.code[0], record.code[2])
                or (record.caller is not None and (frame.file, frame.line) == record.caller[:2])
                for frame in ctx.source.frames
            ],
            dtype=np.bool_,
        )

        rows = np.flatnonzero(ctx.source.frame != NO_FRAME)
        rows = rows[is_of_function[ctx.source.frame[rows]]]
        return bool((ctx.step_of(rows) >= 0).any())


@dataclass(frozen=True)
class Compilation:
    """A compilation in a step, with torch's record of it if there is one.

    Attributes:
        row: Its outermost row.
        compile_id: Such as ``3/1``, or empty.
        location: The line that called the function.
    """

    row: int
    compile_id: str
    record: Compiled | None
    location: Location

    @property
    def key(self) -> tuple[str | None, int | None]:
        """Line of the call, without the function."""
        return self.location.file, self.location.line

    @property
    def is_identified(self) -> bool:
        """Return whether the function is known, and so whether it was compiled before."""
        return bool(self.compile_id) or self.record is not None


def find_recompilations(ctx: Context, code: CompiledCode) -> list[list[Compilation]]:
    """Return the recompilations in steps by the line that causes them, in the order of time."""
    compilations = ctx.compilations
    places = np.flatnonzero(compilations.is_function & (ctx.step_of(compilations.rows) >= 0))
    compiled = [
        _compilation(ctx, code, int(compilations.rows[place]), compilations.numbers[place])
        for place in places.tolist()
    ]
    repeated = [compilation for compilation in compiled if _is_recompilation(compilation)]

    # Without an id, only a line that compiles in several steps shows a recompilation.
    unidentified = [compilation for compilation in compiled if not compilation.is_identified]
    return [
        *_by_line(_without_warm_up(ctx, repeated)),
        *_by_line(_in_several_steps(ctx, unidentified)),
    ]


def _compilation(ctx: Context, code: CompiledCode, row: int, compile_id: str) -> Compilation:
    record = code.version(compile_id, int(ctx.events.ts_ns[row]))
    if record is not None and record.caller is not None:
        return Compilation(row, compile_id, record, location_of(record.caller))
    return Compilation(row, compile_id, record, ctx.location(row))


def _is_recompilation(compilation: Compilation) -> bool:
    """Return whether the function was compiled before, and the compilation did not fail."""
    if compilation.record is not None:
        return compilation.record.again and not compilation.record.failure
    return (version_of(compilation.compile_id) or 0) > 0


def _without_warm_up(ctx: Context, compilations: list[Compilation]) -> list[Compilation]:
    """Drop functions of which the recording has only the first two versions."""
    n_times: dict[str, int] = defaultdict(int)
    for compilation in compilations:
        n_times[function_id(compilation.compile_id)] += 1

    # Most functions compile twice as they learn which sizes vary: the program is not at fault.
    started = {
        function_id(compile_id)
        for compile_id in ctx.compilations.numbers
        if version_of(compile_id) == 0
    }

    return [
        compilation
        for compilation in compilations
        if n_times[function_id(compilation.compile_id)] > 1
        or version_of(compilation.compile_id) != 1
        or function_id(compilation.compile_id) not in started
    ]


def _in_several_steps(ctx: Context, compilations: list[Compilation]) -> list[Compilation]:
    """Return the compilations of lines that compile in several steps, after the first of them."""
    rows = np.array([compilation.row for compilation in compilations], dtype=np.intp)
    steps = ctx.step_of(rows).tolist()

    first: dict[object, int] = {}
    for compilation, step in zip(compilations, steps, strict=True):
        first.setdefault(compilation.key, step)

    return [
        compilation
        for compilation, step in zip(compilations, steps, strict=True)
        if step > first[compilation.key]
    ]


def _by_line(compilations: Iterable[Compilation]) -> list[list[Compilation]]:
    groups: dict[object, list[Compilation]] = defaultdict(list)
    for compilation in compilations:
        groups[compilation.key].append(compilation)
    return list(groups.values())


def group_backward_rows(ctx: Context, groups: list[list[Compilation]]) -> list[list[int]]:
    """Group the compilations of backward passes by line, else by step."""
    backward: list[list[int]] = [[] for _ in groups]
    compilations = ctx.compilations
    rows = compilations.rows[~compilations.is_function]
    steps = [
        {*ctx.step_of(np.array([compilation.row for compilation in group])).tolist()}
        for group in groups
    ]

    for row, step in zip(rows.tolist(), ctx.step_of(rows).tolist(), strict=True):
        candidates = [place for place in range(len(groups)) if step in steps[place]]
        location = ctx.location(row)
        line = location.file, location.line
        of_line = [place for place in candidates if groups[place][0].key == line]
        if candidates:
            backward[(of_line or candidates)[0]].append(row)

    return backward


def compile_times(ctx: Context) -> dict[str, Intervals]:
    """Return the time in steps, or in a recording without steps, that compilation takes.

    The keys are the compilers. ``torch.compile``'s time contains Triton's, and recompilations are
    not included. TorchScript compiles in the background of a call, after it has run it twice:
    nothing is recorded until the call's first operator, and the fallback for inputs unlike those of
    the first calls shows that it was compiled.

    Source: ``torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp`` (``fallback_function``).
    """
    events, compilations = ctx.events, ctx.compilations
    groups = find_recompilations(ctx, CompiledCode(ctx))
    repeated_rows = [compilation.row for group in groups for compilation in group]
    repeated_rows += [row for rows in group_backward_rows(ctx, groups) for row in rows]
    first_rows = compilations.rows[
        ~marked(np.array(repeated_rows, dtype=np.intp), len(events))[compilations.rows]
    ]

    times = {"torch.compile": covered_by(events, first_rows)}
    # Time counts once, for the outermost compiler: torch.compile runs the others.
    covered = covered_by(events, compilations.rows)
    for name, pattern in _COMPILERS.items():
        rows = np.flatnonzero(rows_named(events, pattern, Category.PYTHON))
        times[name] = subtract(covered_by(events, rows), covered)
        covered = unite(covered, times[name])
    times["TorchScript"] = unite(times["TorchScript"], _find_fallback_pauses(ctx))

    if len(ctx.steps):
        steps = union(ctx.steps.starts_ns, ctx.steps.ends_ns)
        times = {name: intersect(time, steps) for name, time in times.items()}
    return {name: time for name, time in times.items() if len(time)}


def compiling_time(ctx: Context) -> Intervals:
    """Return the time that any compilation takes, recompilations included."""
    return reduce(unite, compile_times(ctx).values(), covered_by(ctx.events, ctx.compilations.rows))


def _find_fallback_pauses(ctx: Context) -> Intervals:
    """Return the time without host events before calls of TorchScript that were just compiled.

    It precedes the first call of a function with a fallback, and is much longer than the time
    before later calls, which the program spends on other things.
    """
    events, tree = ctx.events, ctx.tree
    fallbacks = np.flatnonzero(rows_named(events, _FALLBACK, Category.OP))
    calls = distinct(tree.outermost_op[fallbacks])
    pauses = [_pause_before(ctx, call) for call in calls.tolist()]

    compile_pauses = []
    for name in distinct(events.name[calls]).tolist():
        pauses_of_name = [
            pause for pause, call in zip(pauses, calls, strict=True) if events.name[call] == name
        ]
        pauses_of_name.sort()
        # Sorted by time: only before the first call is something compiled.
        lengths = [end - start for start, end in pauses_of_name]
        if lengths[0] >= max(_MIN_COMPILED_NS, 2 * max(lengths[1:], default=0)):
            compile_pauses.append(pauses_of_name[0])

    return of_pairs(tuple(compile_pauses))


def _pause_before(ctx: Context, call: int) -> tuple[int, int]:
    """Return start and end of the time before a call without events of its thread."""
    events, rows = ctx.events, ctx.tree.rows
    thread_rows = rows[(events.lane[rows] == events.lane[call]) & (rows != call)]
    until = int(events.ts_ns[call])

    ends, starts = events.end_ns[thread_rows], events.ts_ns[thread_rows]
    latest = max(ends[ends <= until].max(initial=0), starts[starts < until].max(initial=0))
    return (int(latest) if len(thread_rows) else until), until
