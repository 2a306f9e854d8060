"""DAT008 restarted-workers: a loader starts its workers anew in each epoch.

What it finds:
    Loaders whose iterators start workers again and again, where the program waits for a share of
    the run until they have started and ended. It is measured over the whole run, as it happens
    between epochs, where hardly any recorded step is.

Why it matters:
    Each start is a fork or a new process for each worker, and each end waits for it to exit. Then
    the first batch has to be made from nothing. An epoch of few batches takes longer for this than
    for its steps. The cost is the time of starts and ends alone, without the first batches.

How to fix it:
    Pass ``persistent_workers=True``, and create the loader once and not in each epoch. Data in
    memory needs no workers: leave ``num_workers`` at 0.

Example:
    ::

        loader = DataLoader(dataset, num_workers=4)
        for epoch in range(100):
            for batch in loader:

Use instead:
    ::

        loader = DataLoader(dataset, num_workers=4, persistent_workers=True)
        for epoch in range(100):
            for batch in loader:

Reads:
    What profkit notes of a loader's iterators over the run (``worker_restarts``, in nanoseconds),
    and the monitored time.

When to ignore this:
    The run was short on purpose, and its epochs are longer otherwise. Workers that stay keep their
    copy of the data set: where an epoch changes it in the main process, they have to start anew.

Source:
    ``torch.utils.data.DataLoader`` in PyTorch's documentation (``persistent_workers``).
"""

from collections.abc import Iterator

from profkit.engine.families.run_steps import (
    MIN_RESTARTS,
    compare_with_run,
    find_restart_share,
    measure_run,
)
from profkit.rule import (
    Context,
    Cost,
    Finding,
    RuleInfo,
    at,
    dataclass,
    format_count,
    format_ns,
    format_share,
    known_locations,
    needs,
)

INFO = RuleInfo(
    id="DAT008",
    name="restarted-workers",
    title="Loader starts its workers anew",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.2.0",
    no_example="It is between recorded steps, and its tests run a loader with and without it.",
)


@dataclass(frozen=True)
class Thresholds:
    """When new workers are a finding.

    Attributes:
        min_restarts_count: Minimum starts after the first one: fewer say little of a run.
        min_run_share: Minimum share of the run that starts and ends take.
        warning_share: Share of the run from which it is a warning.
    """

    min_restarts_count: int = MIN_RESTARTS
    min_run_share: float = 0.03
    warning_share: float = 0.1


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the program waits for new workers for a share of the run."""
    restarts = None if ctx.live is None else ctx.live.worker_restarts
    share = find_restart_share(ctx)
    if restarts is None or restarts.n < thresholds.min_restarts_count:
        return
    if share < thresholds.min_run_share:
        return

    # What the recorded steps show of the run: epochs have more between them than starts.
    run = compare_with_run(ctx)
    steps_share = 1 - share if run is None else min(1 - share, run.recorded_ns / run.mean_ns)

    n_steps, _ = measure_run(ctx)
    location = restarts.frame.location
    mean_ns = round(restarts.ns / restarts.n)
    yield INFO.finding(
        severity="warning" if share >= thresholds.warning_share else "note",
        confidence="high",
        message=(
            f"The loop{at(location)} has started the loader's workers anew "
            f"{format_count(restarts.n)} times, and waited {format_ns(mean_ns)} each time until "
            f"they had started and ended: {format_share(share)} of the run."
        ),
        fix=(
            "Pass `persistent_workers=True` to the `DataLoader`, and create it once. Or leave "
            "`num_workers` at 0, if the data are in memory."
        ),
        locations=known_locations(location),
        n=restarts.n,
        cost=Cost(per_step_ns=round(restarts.ns / n_steps), basis="estimate"),
        evidence={
            "n_restarts": restarts.n,
            "restart_ns": restarts.ns,
            "run_share": round(share, 4),
            "steps_share": round(steps_share, 4),
        },
    )
