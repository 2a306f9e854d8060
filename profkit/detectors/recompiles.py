"""CMP001 recompiles: functions are compiled again and again, in the middle of the work.

What it finds:
    Functions of ``torch.compile`` that were compiled in a step although they had been compiled
    before, with the reason in PyTorch's own words; and functions that PyTorch gave up on, because
    they had been compiled too often. The first time is no fault, and neither is a second one right
    behind it, in which PyTorch learns that a size varies.

Why it matters:
    What is compiled holds for calls like those that it was compiled for: these sizes, these types,
    these values. A call of another kind compiles it anew, which takes from a tenth of a second to
    minutes, and all that while the step waits. After eight versions PyTorch stops: what fits none
    of them runs uncompiled from then on, without an error.

How to fix it:
    Make calls alike, or tell the compiler what varies: ``torch.compile(..., dynamic=True)``,
    ``torch._dynamo.mark_dynamic``, padding to a few lengths, tensors instead of numbers that
    change. The reason says which of them it is.

Example:
    ::

        step = torch.compile(model, dynamic=False)
        for x in batches_of_any_length:
            loss = step(x).mean()

Use instead:
    ::

        step = torch.compile(model, dynamic=True)
        for x in batches_of_any_length:
            loss = step(x).mean()

Reads:
    The rows of compiling on the host (``ts_ns`` and ``dur_ns`` in nanoseconds) and of what runs
    behind them, the steps, the devices' idle time in nanoseconds, and what PyTorch remembered of
    compiling, which profkit writes into its traces. Without that, and before torch 2.5, a function
    counts as compiled again if its line compiles in several steps.

When to ignore this:
    A program may meet its last new size soon: three steps say nothing of the thousandth. PyTorch
    remembers 64 times of compiling; the reasons of those before are not known.

Source:
    "Recompilation" and "Dynamic shapes" in PyTorch's documentation on ``torch.compile``;
    ``torch/_dynamo/convert_frame.py`` and ``torch/_dynamo/cache_size.py`` (``recompile_limit``);
    ``torch/_dynamo/utils.py`` (``dynamo_timed``, ``CompilationMetrics``).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.compile.functions import (
    CompiledCode,
    function_of,
    location_of,
    without_resuming,
)
from profkit.engine.families.compile.messages import cure_of_recompiles, first_line, is_limit
from profkit.engine.families.compile.recompilations import Again, compiled_again
from profkit.engine.windows import event_ids, windows, windows_ns
from profkit.engine.wording import at, counted, known_locations, time_per_step, times_per_step
from profkit.index.intervals import covered_within, take_from_start
from profkit.model.capture_info import Compiled
from profkit.model.finding import Confidence, Finding
from profkit.units import format_share

INFO = RuleInfo(
    id="CMP001",
    name="recompiles",
    title="Functions are compiled again",
    severity="warning",
    needs=(needs.OPERATORS, needs.STEPS),
    since="0.1.0",
)

MAX_REASONS = 3
_DIGITS: Final = re.compile(r"\d+")
"""Reasons that differ in sizes and values alone are one."""


@dataclass(frozen=True)
class Thresholds:
    """When compiling again is more than a note.

    Attributes:
        warning_share: Share of the steps that compiling takes: one percent is where a change pays
            for the edit.
        min_versions_count: Versions of a function that there must be, if it is compiled again in
            one step alone: PyTorch makes a second one by itself, to learn what varies.
    """

    warning_share: float = 0.01
    min_versions_count: int = 3


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that compiles again, and for each function given up."""
    code = CompiledCode(ctx)
    for again in compiled_again(ctx, code):
        yield _finding(ctx, again, thresholds)
    for one in code.told:
        if is_limit(one.failure):
            yield from _given_up(ctx, code, one)


def _finding(ctx: Context, again: Again, thresholds: Thresholds) -> Finding:
    starts, ends = windows(ctx)
    lost_ns = covered_within(again.lost, starts, ends)
    total_ns = int(lost_ns.sum())
    repeats = again.n_steps > 1 or again.n_versions >= thresholds.min_versions_count
    heavy = total_ns >= thresholds.warning_share * windows_ns(ctx)
    reason = again.reasons[0] if again.reasons else ""
    return INFO.finding(
        severity="warning" if repeats and heavy else "note",
        confidence=_confidence(again),
        message=(
            f"{_what(again)} compiled again {times_per_step(ctx, len(again.rows))}, which takes "
            f"{time_per_step(ctx, total_ns)} ({format_share(total_ns / windows_ns(ctx))}). "
            f"{_because(again.reasons)}"
        ),
        fix=cure_of_recompiles(reason) if reason else _UNKNOWN_CURE,
        locations=known_locations(again.location, *map(location_of, again.functions)),
        n=len(again.rows),
        cost=ctx.cost(total_ns),
        evidence={
            "compile_ns": again.spent.total_ns,
            "n_steps": again.n_steps,
            "n_versions": again.n_versions,
            "reasons": [first_line(each) for each in again.reasons[:MAX_REASONS]],
            "events": event_ids(ctx, again.rows),
        },
        claims=take_from_start(again.lost, starts, ends, lost_ns),
    )


_UNKNOWN_CURE: Final = (
    "Record it with `profkit run` or `profkit.trace`, or set `TORCH_LOGS=recompiles`, to see what "
    "differs from call to call. Where sizes do: `torch.compile(..., dynamic=True)`."
)


def _confidence(again: Again) -> Confidence:
    if not again.is_sure:
        return "low"
    return "high" if again.n_steps > 1 or again.reasons else "medium"


def _what(again: Again) -> str:
    """What is compiled, in the user's names."""
    if len(again.functions) == 1:
        file, line, name = again.functions[0]
        return f"`{name}` (called{at(again.location)}) is" if file and line else f"`{name}` is"
    if again.location.file is None:
        return "A function is"
    return f"What is called{at(again.location)} is"


def _because(reasons: tuple[str, ...]) -> str:
    if not reasons:
        return "Why is not in the recording."
    lines = [first_line(each) for each in reasons]
    n_more = len({_DIGITS.sub("0", line) for line in lines}) - 1
    more = f", and {counted(n_more, 'other reason')}" if n_more else ""
    return f"What changed, as PyTorch says it: “{lines[0]}”{more}."


def _given_up(ctx: Context, code: CompiledCode, one: Compiled) -> Iterator[Finding]:
    """A note on a function that runs uncompiled since, unless it no longer runs."""
    function = code.function(one.number) or one
    in_steps = code.runs_in_steps(function)
    if in_steps is False:
        return
    caller = function.caller or one.caller
    place = location_of(caller) if caller is not None else location_of(function.code)
    called = without_resuming(function.code)[2]
    name = f"`{called}`" if function.is_users and called else "A function"
    n_versions = sum(function_of(each.number) == function_of(one.number) for each in code.told) - 1
    yield INFO.finding(
        severity="warning",
        confidence="high" if in_steps else "low",
        message=(
            f"{name}{at(place)} was compiled {n_versions} times, and then PyTorch gave up: calls "
            "that fit none of these versions run uncompiled. "
            f"{_because((one.reason,) if one.reason else ())}"
        ),
        fix=cure_of_recompiles(one.reason) if one.reason else _UNKNOWN_CURE,
        locations=known_locations(place),
        evidence={"n_versions": n_versions, "limit": first_line(one.failure)},
    )
