"""The functions in which the program was when its stacks were sampled."""

from collections.abc import Iterator

from profkit.engine.context import Context
from profkit.engine.families.sampled_python import (
    find_sampled_places,
    find_step_functions,
    step_samples,
)
from profkit.model.location import Location
from profkit.model.work_summary import FunctionSummary, SampledSummary


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

    with_operators = () if ctx.has_lines else tuple(_functions_with_operators(ctx, steps_ns))
    return SampledSummary(
        sampled.interval_ns,
        sampled.n_samples,
        tuple(functions),
        sampled.n_steps,
        with_operators,
    )


def _functions_with_operators(ctx: Context, steps_ns: int) -> Iterator[FunctionSummary]:
    """Yield the functions that the steps are in, whatever they run there, most time first.

    Args:
        steps_ns: Time of the recorded steps.
    """
    for function in find_step_functions(ctx):
        time_ns = round(function.share * steps_ns)
        yield FunctionSummary(function.location, function.n_samples, time_ns, function.share)
