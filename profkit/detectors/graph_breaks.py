"""CMP002 graph-breaks: compiled code is split into several graphs.

What it finds:
    Lines in compiled functions that ``torch.compile`` cannot put into a graph, and that run in the
    steps: one graph ends, Python runs, and another graph begins. And functions that it leaves
    uncompiled for that reason, such as those with such a line in a loop. Breaks that the program
    requests (``torch.compiler.disable``, ``torch._dynamo.graph_break``) are not reported while the
    rest is compiled, nor are breaks without another graph behind them.

Why it matters:
    Nothing is fused across a break, values between two graphs go through memory, and one CUDA graph
    cannot contain both. That cost is in no recording: it takes one without the break to know it.
    The cost given here is what the steps take less in a replay of the recording without Python's
    time between the graphs, including those of functions that are compiled on their own only
    because of a break in them or beside them. The true saving may be larger, by what would be
    fused, or smaller, where that time moves elsewhere.

How to fix it:
    Move the line out of the compiled function, or write it so that it can be compiled:
    ``torch.where`` for an ``if`` on a tensor, a tensor instead of ``.item()``, logging outside.
    ``torch.compile(..., fullgraph=True)`` turns every break into an error.

Example:
    ::

        @torch.compile
        def forward(x):
            x = layer(x)
            log.info("rows: %d", len(x))
            return torch.tanh(x)

Use instead:
    ::

        @torch.compile
        def forward(x):
            return torch.tanh(layer(x))

        log.info("rows: %d", len(x))

Reads:
    Calls of compiled functions on the host and their operators (``ts_ns`` and ``dur_ns`` in
    nanoseconds), GPU idle time in nanoseconds, and PyTorch's records of graph breaks, which profkit
    writes into its traces. In other traces the lines come from stacks.

When to ignore this:
    There is little left to fuse, so a break costs almost nothing; or the line is in a library. In
    traces that profkit did not record, breaks that the program requests are reported too.

Source:
    "Working with graph breaks" in PyTorch's documentation on ``torch.compile``;
    ``torch/_dynamo/output_graph.py`` (``GraphCompileReason``) and ``symbolic_convert.py``
    (``torch_dynamo_resume_in_…``); ``torch/_dynamo/convert_frame.py`` (``Torch-Compiled Region``);
    ``torch/_dynamo/graph_break_registry.json`` (the reasons of graph breaks).
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.compile import (
    CompiledCode,
    first_line,
    is_limit,
    is_resumed,
    location_of,
    matching_fix,
    original,
    shortened,
)
from profkit.engine.needs import Need
from profkit.engine.windows import event_ids, windows_ns
from profkit.engine.wording import at, known_locations, time_per_step, times_per_step
from profkit.index.compiled.compilations import gaps_between_graphs
from profkit.index.distinct import distinct
from profkit.index.intervals import Intervals, union
from profkit.model.capture_info import CodePlace, Compiled
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW, Int32s, Mask, Rows
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.patterns import regex
from profkit.units import format_count, format_share

_COMPILED_GRAPH: Final = "CompiledFunction"
"""Source: ``torch/_functorch/_aot_autograd/runtime_wrappers.py``: what runs a compiled graph."""

COMPILED_REGIONS: Final = Need(
    name="compiled regions",
    reason="The calls of compiled functions were not recorded.",
    remedy="Record with torch 2.2 or newer.",
    is_met=lambda ctx: len(ctx.compiled_runs.rows) > 0 or _COMPILED_GRAPH not in ctx.events.names,
)

INFO = RuleInfo(
    id="CMP002",
    name="graph-breaks",
    title="Graph breaks in compiled functions",
    severity="warning",
    needs=(needs.OPERATORS, needs.STEPS, COMPILED_REGIONS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a graph break is more than a note.

    Attributes:
        warning_share: Share of the steps that Python takes between the graphs from which it is a
            warning: from one percent on, a change is worth the edit.
        warning_breaks_count: Breaks of a line per step from which it is a warning in any case: with
            one or two, the graphs are still large.
    """

    warning_share: float = 0.01
    warning_breaks_count: int = 4


_REQUESTED: Final = regex(
    r"torch\.compiler\.disable|torch\._dynamo\.(disable|graph_break)|dynamo\.disable"
)
"""Reasons of graph breaks that the program requests."""
_HINT: Final = regex(r"^\s*Hint: (?P<hint>(?:.|\n)*?)(?=\n\s*Hint: |\n\n|\Z)", re.MULTILINE)
_USELESS_HINT: Final = regex(r"report an issue|Dynamo bug|fundamental|graph break may be difficult")
_FIXES: Final = {
    r"^logging\.|[Ll]ogger|builtin operator `print`|warnings\.warn": (
        "Log outside the compiled function."
    ),
    r"generic_jump|[Dd]ata.dependent (branch|jump|control)": (
        "Use `torch.where(condition, a, b)` or `torch.cond` instead of `if`."
    ),
    r"item\(\)|data.dependent operator|_local_scalar_dense|[Dd]ynamic shape oper": (
        "Keep the value a tensor inside the compiled function, and read it outside."
    ),
    r"generator|context manager|[Cc]omprehension|try|except": (
        "Simplify the line, or move it out of the compiled function."
    ),
}
"""Fixes by what the reason contains."""
_DEFAULT_FIX: Final = "Move the line out of the compiled function."
_UNKNOWN_REASON_FIX: Final = (
    "Move the line out of the compiled function; record with `profkit run` or `profkit.trace`, or "
    "set `TORCH_LOGS=graph_breaks`, to see the reason of the break."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line with graph breaks, and for each function left uncompiled."""
    code = CompiledCode(ctx)
    yield from _breaks_by_line(ctx, code, thresholds)
    for one in _uncompiled(code):
        yield _uncompiled_finding(one)


@dataclass(frozen=True)
class _Line:
    """A line with graph breaks.

    Attributes:
        location: The line: the user's own where there is one.
        further: The line of a library that breaks the graph, or the user's call.
        reason: Torch's reason, or empty.
        is_call: Whether only the line of the call is known, and not the line of the break.
    """

    location: Location
    further: tuple[Location, ...] = ()
    reason: str = ""
    is_call: bool = False


def _breaks_by_line(ctx: Context, code: CompiledCode, thresholds: Thresholds) -> Iterator[Finding]:
    """A finding for the graph breaks of each line in steps, in the order of time."""
    runs = ctx.compiled_runs
    in_steps = ctx.step_of(runs.rows) >= 0
    has_graph = in_steps & _has_graph(ctx, code)
    n_graphs = np.bincount(runs.root[has_graph], minlength=len(runs.rows))
    inside = in_steps & (runs.parent >= 0) & (n_graphs[runs.root] > 1)
    lines: dict[object, tuple[_Line, list[Rows]]] = {}
    called = []
    for places in _same_versions(ctx, np.flatnonzero(inside & _contains_graph(ctx, has_graph))):
        first = int(places[0])
        line = _line(ctx, code, first, has_graph=bool(has_graph[first]))
        if line is not None:
            key = line.location.file, line.location.line, line.is_call
            lines.setdefault(key, (line, []))[1].append(places)
        elif has_graph[first] and code.resumes_at(first) is None:
            called.append(places)
    if not lines:
        return
    of_line = [np.sort(np.concatenate(places)) for _, places in lines.values()]
    # The first graph of a call has to be entered in any case.
    graphs = np.flatnonzero(has_graph)
    _, first_of_call = np.unique(runs.root[graphs], return_index=True)
    others = np.setdiff1d(np.concatenate([*called, graphs[:0]]), graphs[first_of_call])
    entered = _with_calls(runs.root, of_line, others)
    # Computed once for all lines, since it joins all operators of a thread.
    starts, ends = gaps_between_graphs(ctx.events, runs, np.concatenate(entered))
    bounds = np.cumsum([len(places) for places in entered])[:-1]
    gaps = map(union, np.split(starts, bounds), np.split(ends, bounds))
    for (line, _), places, between in zip(lines.values(), of_line, gaps, strict=True):
        yield _finding(ctx, line, places, between, n_graphs, thresholds)


def _with_calls(root: Int32s, of_line: list[Rows], called: Rows) -> list[Rows]:
    """The runs of each line, with those of functions that are called between its graphs.

    A function has graphs of its own only because of a break in it or in its caller: else it would
    be in the graph of the caller. Its run belongs to the next break of the same call, or else to
    the one before.

    Args:
        root: Of each run. Shape of the runs.
        of_line: Runs that resume behind each line.
        called: Runs that do not resume.
    """
    number = np.repeat(np.arange(len(of_line)), [len(places) for places in of_line])
    places = np.concatenate(of_line)
    order = np.lexsort((places, root[places]))
    places, number = places[order], number[order]
    key = root[places] * np.int64(len(root)) + places
    after = np.searchsorted(key, root[called] * np.int64(len(root)) + called)
    at = np.minimum(after, len(places) - 1)
    at = np.where(root[places[at]] == root[called], at, np.maximum(after - 1, 0))
    is_own = root[places[at]] == root[called]
    called, number = called[is_own], number[at[is_own]]
    return [np.concatenate((own, called[number == line])) for line, own in enumerate(of_line)]


def _same_versions(ctx: Context, places: Rows) -> Iterator[Rows]:
    """Runs grouped by version of a function, as far as it is known, in the order of time."""
    events, runs = ctx.events, ctx.compiled_runs
    resumed = runs.resumed_by[places]
    by = np.where(resumed == NO_ROW, NO_ROW, events.name[resumed])
    keys = np.stack((events.name[runs.rows[places]], by), axis=1)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    for number in np.argsort(first, kind="stable").tolist():
        yield places[group == number]


def _has_graph(ctx: Context, code: CompiledCode) -> Mask:
    """Which runs have a graph, by torch's records, else by their operators."""
    runs = ctx.compiled_runs
    names = ctx.events.name[runs.rows]
    found: Mask = runs.has_ops.copy()
    for name, place in zip(*np.unique(names, return_index=True), strict=True):
        at_ns = int(ctx.events.ts_ns[runs.rows[place]])
        record = code.version(runs.numbers[place], at_ns)
        if record is not None:
            found[names == name] = bool(record.n_ops)
    return found


def _contains_graph(ctx: Context, has_graph: Mask) -> Mask:
    """Which runs have a graph, or contain a run that has one."""
    runs = ctx.compiled_runs
    contains: Mask = has_graph.copy()
    above = runs.parent
    while (above >= 0).any():
        here = has_graph & (above >= 0)
        contains[above[here]] = True
        above = np.where(above >= 0, runs.parent[above], above)
    return contains


def _line(ctx: Context, code: CompiledCode, place: int, *, has_graph: bool) -> _Line | None:
    """The line behind which a run resumes; None where there is none, or a requested break.

    Args:
        place: The run's place in ``ctx.compiled_runs``.
        has_graph: Whether that run has a graph.
    """
    called = ctx.location(int(ctx.compiled_runs.rows[place]))
    at = code.resumes_at(place)
    if at is None:
        return _Line(called, is_call=True) if has_graph and not code.is_known(place) else None
    # A break at this line, else in a function that it calls.
    breaks = [one for one in code.breaks if any(each[:2] == at[:2] for each in one.stack)]
    found = min(breaks, key=lambda one: one.stack[0][:2] != at[:2], default=None)
    if found is None:
        return _Line(location_of(original(at)))
    if _REQUESTED.search(first_line(found.reason)):
        return None
    innermost = location_of(found.stack[0])
    if not 0 <= found.user < len(found.stack):
        known = (called,) if called.file is not None else ()
        return _Line((*known, innermost)[0], (innermost,) if known else (), found.reason)
    users = location_of(found.stack[found.user])
    return _Line(users, (innermost,) if found.user else (), found.reason)


def _uncompiled(code: CompiledCode) -> Iterator[Compiled]:
    """The user's functions that run in steps and that torch failed to compile."""
    done: dict[CodePlace, Compiled] = {}
    compiled = {one.code for one in code.compiled if not one.failure}
    for one in code.compiled:
        is_failure = one.failure and not is_limit(one.failure)
        if not is_failure or not one.is_users or is_resumed(one.code[2]):
            continue
        if one.code not in compiled and one.code not in done and code.is_run_in_steps(one):
            done[one.code] = one
    yield from done.values()


def _finding(
    ctx: Context,
    line: _Line,
    places: Rows,
    between: Intervals,
    n_graphs: Rows,
    thresholds: Thresholds,
) -> Finding:
    """The finding for a line.

    Args:
        places: Runs in steps that resume behind the line, in ``ctx.compiled_runs``.
        between: Python's time between the graphs.
        n_graphs: Graphs that run within each run. Shape of the runs.
    """
    change = ProgramChange(host_time=between.pairs())
    cost = ctx.time_cost(change, "estimate")
    runs = ctx.compiled_runs
    rows, calls = runs.rows[places], distinct(runs.root[places])
    is_long = (cost.ns or 0) >= thresholds.warning_share * windows_ns(ctx)
    is_frequent = len(rows) / len(ctx.steps) >= thresholds.warning_breaks_count
    python_ns, n_all = between.total_ns, int(n_graphs[calls].sum())
    n_each = n_all / len(calls)
    where = " in the function called" if line.is_call else ""
    return INFO.finding(
        severity="warning" if is_long or is_frequent else "note",
        confidence="high" if line.reason else "medium",
        message=(
            f"Graph break{where}{at(line.location)}, {times_per_step(ctx, len(rows))}"
            f"{_reason(line.reason)}. The compiled code runs as "
            f"{format_count(round(n_each)) if n_each.is_integer() else f'about {n_each:.1f}'} "
            f"graphs instead of one, with {time_per_step(ctx, python_ns)} "
            f"({format_share(python_ns / windows_ns(ctx))}) of Python between them; the cost of "
            "missed fusion is not included."
        ),
        fix=_fix(line.reason) if line.reason else _UNKNOWN_REASON_FIX,
        locations=known_locations(line.location, *line.further),
        n=len(rows),
        cost=cost,
        evidence={
            "n_graphs": n_all,
            "n_calls": len(calls),
            "python_ns": python_ns,
            "reason": first_line(line.reason),
            "events": event_ids(ctx, rows),
        },
        spans=between.pairs(),
        change=change,
    )


def _reason(reason: str) -> str:
    return f": “{first_line(reason)}”" if reason else ""


def _fix(reason: str) -> str:
    """The fix for a reason of torch's, with its own hint if it has a useful one."""
    fix = matching_fix(first_line(reason), _FIXES) or _DEFAULT_FIX
    hints = (" ".join(match["hint"].split()) for match in _HINT.finditer(reason))
    hint = next((hint for hint in hints if not _USELESS_HINT.search(hint)), "")
    return f"{fix} PyTorch's hint: “{shortened(hint).rstrip('.')}”." if hint else fix


def _uncompiled_finding(one: Compiled) -> Finding:
    place = location_of(one.code)
    return INFO.finding(
        confidence="medium",
        message=(
            f"`{one.code[2]}`{at(place)} runs uncompiled: PyTorch failed to compile it"
            f"{_reason(one.failure)}."
        ),
        fix=_fix(one.failure),
        locations=known_locations(*([location_of(one.caller)] if one.caller else []), place),
        evidence={"reason": first_line(one.failure)},
    )
