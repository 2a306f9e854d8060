"""Lines that end graphs of ``torch.compile`` in steps, and functions that it left uncompiled."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.compile.functions import (
    CompiledCode,
    is_resumed,
    location_of,
    without_resuming,
)
from profkit.engine.families.compile.messages import is_limit, is_wanted
from profkit.index.compiled.compilations import gaps_between_graphs
from profkit.index.intervals import Intervals, union
from profkit.model.capture_info import CodePlace, Compiled, GraphBreak
from profkit.model.events import NO_ROW, Mask, Rows
from profkit.model.location import Location

_SEVERAL = 2
"""Graphs in one call: with one alone nothing is cut."""


@dataclass(frozen=True)
class Broken:
    """A line that ends graphs.

    Attributes:
        location: The line: the user's own where there is one.
        further: The line of a library within it that no graph can hold, and the user's call.
        reason: Why, in torch's words, or empty.
        places: Runs that begin behind it in steps, in ``ctx.compiled_runs``.
        between: Time of Python's around where they begin.
        n_graphs: Graphs that run in the calls that it cuts.
        n_calls: How many calls that are.
        is_call: Whether the line is only that of the call: which one within it is not known.
    """

    location: Location
    further: tuple[Location, ...]
    reason: str
    places: Rows
    between: Intervals
    n_graphs: int
    n_calls: int
    is_call: bool = False


@dataclass
class _Line:
    """What is found of a line so far."""

    location: Location
    further: tuple[Location, ...]
    reason: str
    is_call: bool = False
    places: list[Rows] = field(default_factory=list)


def broken_lines(ctx: Context, code: CompiledCode) -> Iterator[Broken]:
    """Lines that end graphs in steps, in the order of time.

    Args:
        code: What is known of the functions.
    """
    runs = ctx.compiled_runs
    in_steps = ctx.step_of(runs.rows) >= 0
    graphs = in_steps & _graphs(ctx, code)
    n_graphs = np.bincount(runs.root[graphs], minlength=len(runs.rows))
    lines: dict[object, _Line] = {}
    inside = in_steps & (runs.parent >= 0) & (n_graphs[runs.root] >= _SEVERAL)
    for places in _alike(ctx, np.flatnonzero(inside & _leads_on(ctx, graphs))):
        at, first = code.goes_on_at(int(places[0])), int(runs.rows[places[0]])
        if at is not None:
            found = _line(code, ctx.location(first), at)
        elif code.is_known(int(places[0])) or not graphs[places[0]]:
            continue
        else:
            found = _Line(ctx.location(first), (), "", is_call=True)
        if found is not None:
            key = found.location.file, found.location.line, found.is_call
            lines.setdefault(key, found).places.append(places)
    if lines:
        yield from _measured(ctx, list(lines.values()), n_graphs)


def _measured(ctx: Context, lines: list[_Line], n_graphs: Rows) -> Iterator[Broken]:
    """The lines with the time of Python's around their runs, which is looked for once."""
    runs = ctx.compiled_runs
    every = np.concatenate([places for line in lines for places in line.places])
    starts, ends = gaps_between_graphs(ctx.events, runs, every)
    begin = 0
    for line in lines:
        end = begin + sum(map(len, line.places))
        places = np.sort(every[begin:end])
        roots = np.unique(runs.root[places])
        yield Broken(
            location=line.location,
            further=line.further,
            reason=line.reason,
            places=places,
            between=union(starts[begin:end], ends[begin:end]),
            n_graphs=int(n_graphs[roots].sum()),
            n_calls=len(roots),
            is_call=line.is_call,
        )
        begin = end


def _alike(ctx: Context, places: Rows) -> Iterator[Rows]:
    """Runs of one version of one function, as far as that is known, in the order of time."""
    events, runs = ctx.events, ctx.compiled_runs
    resumed = runs.resumed_by[places]
    by = np.where(resumed == NO_ROW, NO_ROW, events.name[resumed])
    keys = np.stack((events.name[runs.rows[places]], by), axis=1)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    for number in np.argsort(first, kind="stable").tolist():
        yield places[group == number]


def _graphs(ctx: Context, code: CompiledCode) -> Mask:
    """Which runs hold a graph, as torch tells, or else as their operators do."""
    runs = ctx.compiled_runs
    names = ctx.events.name[runs.rows]
    found: Mask = runs.has_ops.copy()
    for name, place in zip(*np.unique(names, return_index=True), strict=True):
        at_ns = int(ctx.events.ts_ns[runs.rows[place]])
        told = code.version(runs.numbers[place], at_ns)
        if told is not None:
            found[names == name] = bool(told.n_ops)
    return found


def _leads_on(ctx: Context, graphs: Mask) -> Mask:
    """Which runs hold a graph, or have one within them."""
    runs = ctx.compiled_runs
    leads: Mask = graphs.copy()
    above = runs.parent
    while (above >= 0).any():
        here = graphs & (above >= 0)
        leads[above[here]] = True
        above = np.where(above >= 0, runs.parent[above], above)
    return leads


def _line(code: CompiledCode, called: Location, at: CodePlace) -> _Line | None:
    """The line behind which a run goes on; None where the program wants its graph to end there."""
    found = _reason_at(code, at)
    if found is None:
        return _Line(location_of(without_resuming(at)), (), "")
    if is_wanted(found.reason):
        return None
    innermost = location_of(found.stack[0])
    if not 0 <= found.user < len(found.stack):
        known = (called,) if called.file is not None else ()
        return _Line((*known, innermost)[0], (innermost,) if known else (), found.reason)
    users = location_of(found.stack[found.user])
    return _Line(users, (innermost,) if found.user else (), found.reason)


def _reason_at(code: CompiledCode, at: CodePlace) -> GraphBreak | None:
    """What torch says of a line: of the line itself, else of what it calls."""
    for one in code.breaks:
        if one.stack and one.stack[0][:2] == at[:2]:
            return one
    for one in code.breaks:
        if any(place[:2] == at[:2] for place in one.stack):
            return one
    return None


def uncompiled(code: CompiledCode) -> Iterator[Compiled]:
    """Functions of the user's that run in steps and that torch left to Python as a whole.

    Args:
        code: What is known of the functions.
    """
    done: dict[CodePlace, Compiled] = {}
    compiled = {one.code for one in code.told if not one.failure}
    for one in code.told:
        gave_up = one.failure and not is_limit(one.failure)
        if not gave_up or not one.is_users or is_resumed(one.code[2]):
            continue
        if one.code not in compiled and one.code not in done and code.runs_in_steps(one):
            done[one.code] = one
    yield from done.values()
