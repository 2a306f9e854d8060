"""Which functions of ``torch.compile`` were compiled again in steps, by the user's line."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.compile.functions import (
    CompiledCode,
    function_of,
    is_resumed,
    location_of,
    version_of,
)
from profkit.engine.windows import idle_in_windows
from profkit.index.intervals import Intervals, covered_by, intersect
from profkit.model.capture_info import CodePlace, Compiled
from profkit.model.events import Rows
from profkit.model.location import Location


@dataclass(frozen=True)
class Again:
    """What is compiled again at one line.

    Attributes:
        location: The user's line that calls it, as far as it is known.
        rows: The rows of compiling it again, in the order of time.
        reasons: Why, in torch's words: each once, the most frequent first.
        functions: The user's functions that are compiled there.
        n_versions: Most versions that one of them had afterwards; 0 where it is not known.
        n_steps: Steps in which it was compiled again.
        spent: When it was compiled, backward passes included.
        lost: The part of it in which no device worked; all of it without devices.
        is_sure: Whether it is known that it had been compiled before.
    """

    location: Location
    rows: Rows
    reasons: tuple[str, ...]
    functions: tuple[CodePlace, ...]
    n_versions: int
    n_steps: int
    spent: Intervals
    lost: Intervals
    is_sure: bool


@dataclass(frozen=True)
class _One:
    """One row of compiling a function in a step, which may be told of by torch too."""

    row: int
    number: str
    told: Compiled | None
    location: Location

    @property
    def key(self) -> tuple[str | None, int | None]:
        return self.location.file, self.location.line


def compiled_again(ctx: Context, code: CompiledCode) -> Iterator[Again]:
    """What is compiled again in steps, line by line, in the order of time.

    Args:
        code: What is known of the functions.
    """
    compilations = ctx.compilations
    places = np.flatnonzero(compilations.is_function & (ctx.step_of(compilations.rows) >= 0))
    ones = [
        _one(ctx, code, int(compilations.rows[place]), compilations.numbers[place])
        for place in places.tolist()
    ]
    sure = _without_warm_up(ctx, [one for one in ones if _is_known_again(one)])
    unsure = _in_several_steps(ctx, [one for one in ones if not one.number and one.told is None])
    known = _by_line(sure)
    groups = [*known, *_by_line(unsure)]
    for number, (group, more) in enumerate(zip(groups, _others(ctx, groups), strict=True)):
        yield _again(ctx, group, more, is_sure=number < len(known))


def _one(ctx: Context, code: CompiledCode, row: int, number: str) -> _One:
    told = code.version(number, int(ctx.events.ts_ns[row]))
    if told is not None and told.caller is not None:
        return _One(row, number, told, location_of(told.caller))
    return _One(row, number, told, ctx.location(row))


def _is_known_again(one: _One) -> bool:
    """Whether a function was compiled before, and torch did not give up this time."""
    if one.told is not None:
        return one.told.again and not one.told.failure
    return (version_of(one.number) or 0) > 0


def _without_warm_up(ctx: Context, ones: list[_One]) -> list[_One]:
    """Without second versions whose first one was made in the recording too, if they are all."""
    n_times: dict[str, int] = defaultdict(int)
    for one in ones:
        n_times[function_of(one.number)] += 1
    begun = {function_of(each) for each in ctx.compilations.numbers if version_of(each) == 0}
    return [
        one
        for one in ones
        if n_times[function_of(one.number)] > 1
        or version_of(one.number) != 1
        or function_of(one.number) not in begun
    ]


def _in_several_steps(ctx: Context, ones: list[_One]) -> list[_One]:
    """Those of lines that compile in several steps, but for the first of them."""
    steps = ctx.step_of(np.array([one.row for one in ones], dtype=np.intp)).tolist()
    first: dict[object, int] = {}
    for one, step in zip(ones, steps, strict=True):
        first.setdefault(one.key, step)
    return [one for one, step in zip(ones, steps, strict=True) if step > first[one.key]]


def _by_line(ones: Iterable[_One]) -> list[list[_One]]:
    groups: dict[object, list[_One]] = defaultdict(list)
    for one in ones:
        groups[one.key].append(one)
    return list(groups.values())


def _others(ctx: Context, groups: list[list[_One]]) -> list[list[int]]:
    """Rows of compiling backward passes: of their line, else of what was compiled in the step."""
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


def _again(ctx: Context, group: list[_One], others: list[int], *, is_sure: bool) -> Again:
    rows = np.array([one.row for one in group], dtype=np.intp)
    spent = covered_by(ctx.events, np.array([*rows.tolist(), *others], dtype=np.intp))
    reasons = [one.told.reason for one in group if one.told is not None and one.told.reason]
    versions = [version_of(one.number) for one in group]
    return Again(
        location=group[0].location,
        rows=rows,
        reasons=tuple(sorted(dict.fromkeys(reasons), key=lambda each: -reasons.count(each))),
        functions=tuple(
            dict.fromkeys(
                one.told.code
                for one in group
                if one.told is not None and one.told.is_users and not is_resumed(one.told.code[2])
            )
        ),
        n_versions=max((each + 1 for each in versions if each is not None), default=0),
        n_steps=len(np.unique(ctx.step_of(rows))),
        spent=spent,
        lost=intersect(spent, idle_in_windows(ctx)) if ctx.has_device_work else spent,
        is_sure=is_sure,
    )
