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
from profkit.index.compiled.compilations import find_gaps_between_graphs
from profkit.index.distinct import distinct
from profkit.index.intervals import Intervals, union
from profkit.rule import (
    NO_ROW,
    CodePlace,
    Compiled,
    Context,
    Finding,
    Int32s,
    Location,
    Mask,
    Need,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    format_count,
    known_locations,
    measure_saving,
    needs,
    reaches_share,
    regex,
    time_with_share,
    times_per_step,
)

_COMPILED_GRAPH: Final = "CompiledFunction"
"""The operator that runs a compiled graph.

Source: ``torch/_functorch/_aot_autograd/runtime_wrappers.py``."""

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
    """When a graph break is a warning.

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
# Hints to torch's developers, and those that say that nothing can be done.
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
"""Fixes by a pattern in the reason."""
_DEFAULT_FIX: Final = "Move the line out of the compiled function."
_UNKNOWN_REASON_FIX: Final = (
    "Move the line out of the compiled function; record with `profkit run` or `profkit.trace`, or "
    "set `TORCH_LOGS=graph_breaks`, to see the reason of the break."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line with graph breaks, and for each function left uncompiled."""
    code = CompiledCode(ctx)
    yield from _find_breaks(ctx, code, thresholds)
    for function in _find_uncompiled(code):
        yield _build_uncompiled_finding(function)


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


def _find_breaks(ctx: Context, code: CompiledCode, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for the graph breaks of each line in steps, in the order of time."""
    runs = ctx.compiled_runs
    in_steps = ctx.step_of(runs.rows) >= 0
    has_graph = in_steps & _has_graph(ctx, code)
    n_graphs = np.bincount(runs.root[has_graph], minlength=len(runs.rows))
    is_continued = in_steps & (runs.parent >= 0) & (n_graphs[runs.root] > 1)

    # All runs of a version resume behind the same line, so one of them tells for all.
    lines: dict[object, tuple[_Line, list[Rows]]] = {}
    called = []
    continued = np.flatnonzero(is_continued & _contains_graph(ctx, has_graph))
    for places in _group_by_version(ctx, continued):
        first = int(places[0])
        line = _find_line(ctx, code, first, has_graph=bool(has_graph[first]))
        if line is not None:
            key = line.location.file, line.location.line, line.is_call
            lines.setdefault(key, (line, []))[1].append(places)
        elif has_graph[first] and code.resumes_at(first) is None:
            called.append(places)
    if not lines:
        return

    # Entering the first graph of a call is not a cost of a break.
    runs_of_lines = [np.sort(np.concatenate(places)) for _, places in lines.values()]
    graphs = np.flatnonzero(has_graph)
    _, first_of_call = np.unique(runs.root[graphs], return_index=True)
    called_runs = np.setdiff1d(np.concatenate([*called, graphs[:0]]), graphs[first_of_call])
    entered = _add_called_runs(runs.root, runs_of_lines, called_runs)

    # Computed once for all lines, since it joins all operators of a thread.
    starts, ends = find_gaps_between_graphs(ctx.events, runs, np.concatenate(entered))
    bounds = np.cumsum([len(places) for places in entered])[:-1]
    gaps = map(union, np.split(starts, bounds), np.split(ends, bounds))
    for (line, _), places, between in zip(lines.values(), runs_of_lines, gaps, strict=True):
        yield _build_finding(ctx, line, places, between, n_graphs, thresholds)


def _add_called_runs(root: Int32s, runs_of_lines: list[Rows], called_runs: Rows) -> list[Rows]:
    """Add to the runs of each line the runs of functions called between its graphs.

    A function has graphs of its own only because of a break in it or in its caller: else it would
    be in the graph of the caller. Its run belongs to the next break of the same call, or else to
    the one before.

    Args:
        root: The outermost run around each run. Shape of the runs.
        runs_of_lines: Runs that resume behind each line.
        called_runs: Runs that do not resume.
    """
    line = np.repeat(np.arange(len(runs_of_lines)), [len(places) for places in runs_of_lines])
    places = np.concatenate(runs_of_lines)
    order = np.lexsort((places, root[places]))
    places, line = places[order], line[order]

    # Root and run in one key, so that a single search finds the next break of the same call.
    key = root[places] * np.int64(len(root)) + places
    following = np.searchsorted(key, root[called_runs] * np.int64(len(root)) + called_runs)
    nearest = np.minimum(following, len(places) - 1)
    is_same_call = root[places[nearest]] == root[called_runs]
    nearest = np.where(is_same_call, nearest, np.maximum(following - 1, 0))

    is_matched = root[places[nearest]] == root[called_runs]
    matched_runs, matched_line = called_runs[is_matched], line[nearest[is_matched]]
    return [
        np.concatenate((resumed_runs, matched_runs[matched_line == number]))
        for number, resumed_runs in enumerate(runs_of_lines)
    ]


def _group_by_version(ctx: Context, places: Rows) -> Iterator[Rows]:
    """Group runs by version of a function, as far as it is known, in the order of time."""
    events, runs = ctx.events, ctx.compiled_runs
    resumed = runs.resumed_by[places]
    resumed_name = np.where(resumed == NO_ROW, NO_ROW, events.name[resumed])
    keys = np.stack((events.name[runs.rows[places]], resumed_name), axis=1)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    # NumPy 2.0 alone returns the inverse with as many dimensions as the keys.
    group = group.reshape(-1)
    for number in np.argsort(first, kind="stable").tolist():
        yield places[group == number]


def _has_graph(ctx: Context, code: CompiledCode) -> Mask:
    """Return which runs have a graph, by torch's records, else by their operators."""
    runs = ctx.compiled_runs
    names = ctx.events.name[runs.rows]
    has_graph: Mask = runs.has_ops.copy()
    for name, place in zip(*np.unique(names, return_index=True), strict=True):
        at_ns = int(ctx.events.ts_ns[runs.rows[place]])
        record = code.version(runs.numbers[place], at_ns)
        if record is not None:
            has_graph[names == name] = bool(record.n_ops)
    return has_graph


def _contains_graph(ctx: Context, has_graph: Mask) -> Mask:
    """Return which runs have a graph, or contain a run that has one."""
    runs = ctx.compiled_runs
    contains: Mask = has_graph.copy()
    # All runs climb one level per round, as functions are nested only a few deep.
    ancestor = runs.parent
    while (ancestor >= 0).any():
        contains[ancestor[has_graph & (ancestor >= 0)]] = True
        ancestor = np.where(ancestor >= 0, runs.parent[ancestor], ancestor)
    return contains


def _find_line(ctx: Context, code: CompiledCode, place: int, *, has_graph: bool) -> _Line | None:
    """Find the line behind which a run resumes; None if it does not, or the break is requested.

    Args:
        place: The run's place in ``ctx.compiled_runs``.
        has_graph: Whether that run has a graph.
    """
    call_site = ctx.location(int(ctx.compiled_runs.rows[place]))
    resumed = code.resumes_at(place)
    if resumed is None:
        return _Line(call_site, is_call=True) if has_graph and not code.is_known(place) else None

    # A break at this line, else in a function that it calls.
    breaks = [
        candidate
        for candidate in code.breaks
        if any(frame[:2] == resumed[:2] for frame in candidate.stack)
    ]
    graph_break = min(
        breaks, key=lambda candidate: candidate.stack[0][:2] != resumed[:2], default=None
    )
    if graph_break is None:
        return _Line(location_of(original(resumed)))
    if _REQUESTED.search(first_line(graph_break.reason)):
        return None

    # The user's line comes first: a line of a library is not theirs to change.
    innermost, reason = location_of(graph_break.stack[0]), graph_break.reason
    if 0 <= graph_break.user < len(graph_break.stack):
        users = location_of(graph_break.stack[graph_break.user])
        return _Line(users, (innermost,) if graph_break.user else (), reason)
    if call_site.file is not None:
        return _Line(call_site, (innermost,), reason)
    return _Line(innermost, (), reason)


def _find_uncompiled(code: CompiledCode) -> Iterator[Compiled]:
    """Find the user's functions that run in steps and that torch failed to compile."""
    compiled = {function.code for function in code.compiled if not function.failure}
    uncompiled: dict[CodePlace, Compiled] = {}
    for function in code.compiled:
        # The limit of recompilations is no failure of the code: recompiles reports it.
        is_failure = function.failure and not is_limit(function.failure)
        if not is_failure or not function.is_users or is_resumed(function.code[2]):
            continue
        is_new = function.code not in compiled and function.code not in uncompiled
        if is_new and code.is_run_in_steps(function):
            uncompiled[function.code] = function
    yield from uncompiled.values()


def _build_finding(
    ctx: Context,
    line: _Line,
    places: Rows,
    between: Intervals,
    n_graphs: Rows,
    thresholds: Thresholds,
) -> Finding:
    """Build the finding for a line.

    Args:
        places: Runs in steps that resume behind the line, in ``ctx.compiled_runs``.
        between: Python's time between the graphs.
        n_graphs: Graphs that run within each run. Shape of the runs.
    """
    runs = ctx.compiled_runs
    # A call with several breaks is one run of the outermost function, and counts once.
    rows, calls = runs.rows[places], distinct(runs.root[places])
    python_ns, n_all = between.total_ns, int(n_graphs[calls].sum())
    n_per_call = n_all / len(calls)
    is_exact = n_per_call.is_integer()
    n_text = format_count(round(n_per_call)) if is_exact else f"about {n_per_call:.1f}"
    in_callee = " in the function called" if line.is_call else ""

    saving = measure_saving(ctx, ProgramChange(host_time=between.pairs()), "estimate")
    is_long = reaches_share(ctx, saving.cost.ns, thresholds.warning_share)
    is_frequent = len(rows) / len(ctx.steps) >= thresholds.warning_breaks_count

    return saving.finding(
        INFO,
        severity="warning" if is_long or is_frequent else "note",
        confidence="high" if line.reason else "medium",
        message=(
            f"Graph break{in_callee}{at(line.location)}, {times_per_step(ctx, len(rows))}"
            f"{_quote_reason(line.reason)}. The compiled code runs as {n_text} "
            f"graphs instead of one, with {time_with_share(ctx, python_ns)} of Python between "
            "them; the cost of missed fusion is not included."
        ),
        fix=_suggest_fix(line.reason) if line.reason else _UNKNOWN_REASON_FIX,
        locations=known_locations(line.location, *line.further),
        rows=rows,
        evidence={
            "n_graphs": n_all,
            "n_calls": len(calls),
            "python_ns": python_ns,
            "reason": first_line(line.reason),
        },
        spans=between.pairs(),
    )


def _quote_reason(reason: str) -> str:
    return f": “{first_line(reason)}”" if reason else ""


def _suggest_fix(reason: str) -> str:
    """Suggest the fix for a reason of torch's, with its own hint if it has a useful one."""
    fix = matching_fix(first_line(reason), _FIXES) or _DEFAULT_FIX
    hints = (" ".join(match["hint"].split()) for match in _HINT.finditer(reason))
    hint = next((hint for hint in hints if not _USELESS_HINT.search(hint)), "")
    return f"{fix} PyTorch's hint: “{shortened(hint).rstrip('.')}”." if hint else fix


def _build_uncompiled_finding(function: Compiled) -> Finding:
    place = location_of(function.code)
    caller = [location_of(function.caller)] if function.caller else []
    return INFO.finding(
        confidence="medium",
        message=(
            f"`{function.code[2]}`{at(place)} runs uncompiled: PyTorch failed to compile it"
            f"{_quote_reason(function.failure)}."
        ),
        fix=_suggest_fix(function.failure),
        locations=known_locations(*caller, place),
        evidence={"reason": first_line(function.failure)},
    )
