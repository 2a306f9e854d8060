"""The functions in which the program was when its stacks were sampled."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from profkit.engine.context import Context
from profkit.engine.families.sampled_python import (
    MIN_SAMPLES,
    MIN_SHARE,
    find_sampled_places,
    is_beyond_chance,
    step_samples,
)
from profkit.model.capture_info import SampledFunction, SampledTime
from profkit.model.location import Location
from profkit.model.work_summary import FunctionSummary, SampledSummary
from profkit.patterns import regex

_RUNS_STEP: Final = regex(r"(^|\.)(step|backward|zero_grad)$")
"""Calls, as a program writes them, of which a function that runs the steps has one."""


def summarize_sampled(ctx: Context) -> SampledSummary | None:
    """Summarize the sampled functions; of steps, without the time in their operators."""
    sampled = None if ctx.trace.capture is None else ctx.trace.capture.sampled
    if sampled is None:
        return None

    if sampled.n_steps:
        return _summarize_sampled_steps(ctx)

    functions = (
        FunctionSummary(
            location=Location(*function.place) if function.place[0] else Location(),
            n_samples=function.n,
            time_ns=function.ns,
            share=function.ns / sampled.running_ns,
            library=function.library,
        )
        for function in sampled.functions
    )

    return SampledSummary(sampled.interval_ns, sampled.n_samples, tuple(functions))


def _summarize_sampled_steps(ctx: Context) -> SampledSummary | None:
    sampled = step_samples(ctx)
    if sampled is None:
        return None

    steps_ns = ctx.steps.total_ns
    functions = (
        FunctionSummary(
            location=place.location,
            n_samples=place.n_samples,
            time_ns=round(place.share * steps_ns),
            share=place.share,
            library=place.library,
            callee=place.callee,
            waiting_share=place.waiting_share,
        )
        for place in find_sampled_places(ctx)
    )

    with_operators = () if ctx.has_lines else tuple(_functions_with_operators(sampled, steps_ns))
    return SampledSummary(
        sampled.interval_ns,
        sampled.n_samples,
        tuple(functions),
        sampled.n_steps,
        with_operators,
    )


def _functions_with_operators(sampled: SampledTime, steps_ns: int) -> Iterator[FunctionSummary]:
    """Yield the functions that the steps are in, whatever they run there, most time first.

    A function that calls ``backward()`` or an optimizer runs the steps, and takes all of them.

    Args:
        steps_ns: Time of the recorded steps.
    """
    by_function: dict[tuple[str, str], list[SampledFunction]] = defaultdict(list)
    for function in sampled.functions:
        file, _, name = function.place
        by_function[file, name].append(function)

    longest = sorted(by_function.values(), key=lambda lines: -sum(line.ns for line in lines))
    for lines in longest:
        share = sum(line.ns for line in lines) / max(1, sampled.running_ns)
        main = max(lines, key=lambda line: line.ns)
        runs_steps = any(line.part or _RUNS_STEP.search(line.callee) for line in lines)
        if runs_steps or not main.place[0]:
            continue
        n_samples, time_ns = sum(line.n for line in lines), round(share * steps_ns)
        is_seen_often = n_samples >= MIN_SAMPLES
        if is_seen_often and is_beyond_chance(share, sampled.n_samples, MIN_SHARE):
            yield FunctionSummary(Location(*main.place), n_samples, time_ns, share)
