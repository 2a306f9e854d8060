"""PRF008 nothing-recorded: the recording has no operator, no Python call and no device work.

What it finds:
    Traces in which nothing of the program was recorded: no operators, no Python calls, no device
    work, no allocations. What the profiler writes itself does not count: its overhead, the span of
    the whole recording, and the runtime calls with which it starts and stops.

Why it matters:
    Such a trace says nothing about the program, and no check can run. The file exists, so the fault
    is easily missed.

How to fix it:
    Let the program run while the profiler records. With a schedule, call ``step()`` once per
    iteration, and let the loop run for at least ``wait + warmup + active`` iterations: the profiler
    records only in the active ones. Do the work in the process that records, and in a thread that
    was started within the profiler's block or by PyTorch.

Example:
    ::

        with torch.profiler.profile(schedule=torch.profiler.schedule(wait=2, warmup=2, active=3)):
            for batch in loader:
                train_step(batch)

Use instead:
    ::

        with profkit.trace("train", wait=2, warmup=1, active=3) as t:
            for batch in loader:
                train_step(batch)
                t.step()

Reads:
    The categories of all events, the number of allocations, the length of the recording
    (``ts_ns`` and ``dur_ns`` in nanoseconds).

When to ignore this:
    The recorded program runs in another process, and its own trace is analyzed.

Source:
    ``torch.profiler.schedule`` and ``torch.profiler.profile.step`` in PyTorch's documentation;
    ``libkineto/src/CuptiActivityProfiler.cpp`` (overhead and calls of the profiler).
"""

from collections.abc import Iterator

from profkit.rule import Context, Finding, RuleInfo, dataclass, format_ns, needs

INFO = RuleInfo(
    id="PRF008",
    name="nothing-recorded",
    title="Nothing of the program was recorded",
    severity="warning",
    needs=(needs.TRACE,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """None: one event of the program is enough."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the trace has no event of the program."""
    if ctx.has_program:
        return

    events = ctx.events
    # A profiler that starts and stops makes some calls itself.
    n_calls = len(events.host_calls)
    length = f" of {format_ns(ctx.window_ns)}" if ctx.window_ns else ""
    yield INFO.finding(
        confidence="high",
        message=f"The recording{length} has no operator, no Python call and no device work.",
        fix=(
            "Run the program while the profiler records: with a schedule, call `step()` once per "
            "iteration for at least `wait + warmup + active` iterations; record in the process "
            "that does the work."
        ),
        evidence={"n_events": len(events), "n_runtime_calls": n_calls},
    )
