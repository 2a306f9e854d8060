"""PRF015 untypical-steps: most time of the run is not in steps like the recorded ones.

What it finds:
    Runs whose steps take at least twice as long on average as the longest recorded one. Time that
    profkit takes and time without a core do not count, nor does what precedes the first sample
    of the memory.

Why it matters:
    The recorded steps are a few in a row. What a program does once per epoch is hardly ever among
    them: it starts loader workers, evaluates, saves, builds data sets. A report on steps cannot
    say that these take most of the run.

How to fix it:
    Record more steps in a row, so that the end of an epoch is among them. Workers that start anew
    in each epoch are kept by ``persistent_workers=True``; a data set in memory needs none.

Example:
    ::

        for epoch in range(100):
            for batch in DataLoader(dataset, num_workers=4):  # twenty short steps

Use instead:
    ::

        loader = DataLoader(dataset, num_workers=4, persistent_workers=True)
        for epoch in range(100):
            for batch in loader:

Reads:
    The samples of monitored memory (``step``, ``ts_ns`` and ``own_ns`` in nanoseconds), the steps,
    and the number of loader workers.

When to ignore this:
    The run was short on purpose, and a longer one evaluates and saves as often, but trains longer.

Source:
    ``torch.utils.data.DataLoader`` in PyTorch's documentation (``persistent_workers``).
"""

from collections.abc import Iterator

from profkit.engine.families.run_steps import FIX_RESTARTS, MIN_STEPS, UNTYPICAL, compare_with_run
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    dataclass,
    format_count,
    format_ns,
    format_share,
    needs,
)

INFO = RuleInfo(
    id="PRF015",
    name="untypical-steps",
    title="Most of the run is not in steps like the recorded ones",
    severity="note",
    needs=(needs.STEPS, needs.MONITORED_STEPS),
    since="0.2.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """When recorded steps are not typical of a run.

    Attributes:
        min_ratio: Minimum ratio of the run's mean step time to the longest recorded one: from 2 on
            more than half of the run's time is elsewhere.
        min_steps_count: Minimum steps of the run after the first sample of the memory. One long
            pause dominates fewer.
    """

    min_ratio: float = UNTYPICAL
    min_steps_count: int = MIN_STEPS


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the steps of the run take much longer than the recorded ones."""
    run = compare_with_run(ctx)
    if run is None or run.n_steps < thresholds.min_steps_count:
        return
    if run.ratio < thresholds.min_ratio:
        return

    mean_ns, recorded_ns, n_steps = run.mean_ns, run.recorded_ns, run.n_steps
    elsewhere_share = 1 - recorded_ns / mean_ns
    yield INFO.finding(
        confidence="high",
        message=(
            f"Over {format_count(n_steps)} steps of the run a step takes "
            f"{format_ns(round(mean_ns))} on average, the recorded ones "
            f"{format_ns(round(recorded_ns))}: {format_share(elsewhere_share)} of the run is in "
            "none like them."
        ),
        fix=_suggest_fix(ctx),
        n=n_steps,
        evidence={
            "mean_step_ns": round(mean_ns),
            "recorded_step_ns": round(recorded_ns),
            "elsewhere_share": round(elsewhere_share, 4),
        },
    )


def _suggest_fix(ctx: Context) -> str:
    """Return how to see what takes the run, and what it is where loader workers may start anew."""
    fix = (
        "Record as many steps in a row as an epoch has, by `--active`, to see what happens between "
        "its steps."
    )
    threads = None if ctx.trace.capture is None else ctx.trace.capture.threads
    return f"{fix} {FIX_RESTARTS}" if threads is not None and threads.n_workers else fix
