"""DAT001 starved-by-loader: the loop waits for its next batch while the GPU has no work.

What it finds:
    Steps that spend a large part of their time in a loader's ``__next__`` (or in the wait that
    ``profkit.steps`` measures) while no GPU works, in most steps or in some for long. A wait in the
    first step alone, when workers start, is not reported. And loops that wait for busy workers in
    the steps around the recorded ones, by samples: workers go on while a recording starts, and the
    recorded steps may find batches that are ready.

Why it matters:
    With ``num_workers=0`` the main process reads and collates each batch between two steps, and
    launches nothing meanwhile. With too few or slow workers the loop waits for them. The cost is
    what the steps take less in a replay of the recording in which every batch is ready: where the
    GPU still has work, less than the time in the loader. It is an upper bound where the steps
    themselves begin to iterate over a loader: the first batch can't be ready then; and where a
    program without a GPU has too few cores for its loader and its model at the same time. Of steps
    that were not recorded it is their sampled wait, an estimate.

How to fix it:
    Give the loader workers, so that batches are prepared while the GPU works; make them persistent
    and pin their memory. If it has workers already: use more of them, a larger
    ``prefetch_factor``, or do less work per sample. Workers that wait for a network may be more
    than the cores; workers that wait for one lock gain nothing from being more. Each worker reads
    the whole of an ``IterableDataset``, unless its ``__iter__`` takes a part by
    ``get_worker_info()``. A sampler runs in the main process, with workers too. Pipelines and the
    ``Trainer`` of Transformers make their loader themselves: they take the number of workers as an
    argument.

Example:
    ::

        loader = DataLoader(dataset, batch_size=32)

Use instead:
    ::

        loader = DataLoader(dataset, batch_size=32, num_workers=4, persistent_workers=True,
                            pin_memory=True)

Reads:
    Annotations of the loader (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), calls of Python
    functions in it, sampled stacks of the steps and of the loader's workers, the steps, GPU busy
    time in nanoseconds, source lines.

When to ignore this:
    The machine has no spare cores, so workers take time from the main process; or the storage
    cannot be read faster, so workers hide only a part of the wait.

Source:
    ``torch.utils.data.DataLoader`` (``num_workers``, ``prefetch_factor``, ``persistent_workers``)
    in PyTorch's documentation; "Enable asynchronous data loading and augmentation" in PyTorch's
    Performance Tuning Guide; the annotation is written by ``torch/utils/data/dataloader.py``.
    ``transformers/pipelines/base.py`` (``num_workers``; ``ChunkPipeline``, which allows one) and
    ``TrainingArguments``.
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.loader_fixes import (
    LoaderWait,
    is_limited_by_cores,
    suggest_for_sampler,
    suggest_for_workers,
    suggest_workers,
)
from profkit.engine.families.loader_functions import (
    HiddenWaits,
    LoaderFunction,
    find_function_in_loop,
    find_function_in_workers,
    find_hidden_waits,
)
from profkit.engine.families.python_calls import find_innermost_callee, function_name
from profkit.engine.families.run_steps import measure_restarts_of_loop
from profkit.engine.families.sampled_python import TORCH
from profkit.engine.families.sampled_texts import call_text
from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by, covered_within, intersect
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    MAX_EVENT_IDS,
    NO_ROW,
    Category,
    Context,
    Cost,
    Finding,
    Int64s,
    Location,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    format_ns,
    format_share,
    idle_in_windows,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_per_step,
    torch_names,
    windows_ns,
)

INFO = RuleInfo(
    id="DAT001",
    name="starved-by-loader",
    title="Loop waits for the data loader",
    severity="warning",
    needs=(needs.STEPS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a wait for data is a finding.

    Attributes:
        min_step_share: Minimum share of a step in the loader with every GPU idle. A loader without
            workers that only copies a small batch stays below a tenth.
        min_steps_share: Minimum share of such steps. One step in six is an outlier, such as the
            start of workers.
        min_later_share: Minimum share of the time of all steps but the first, for waits in fewer
            steps: workers that fall behind make every n-th step wait for all of them. Two steps
            have to wait, and a tenth of the time is worth a setting.
    """

    min_step_share: float = 0.1
    min_steps_share: float = 0.5
    min_later_share: float = 0.1


_LOADER: Final = regex(rf"^{re.escape(torch_names.DATA_LOADER)}")
_WITH_WORKERS: Final = "MultiProcessing"
"""Part of the name of a wait for a batch that workers prepare."""
_IN_PROCESS: Final = "SingleProcess"
"""Part of the name of a wait for a batch that the loop's own process prepares."""
_MOST: Final = 0.5
"""A share of a loader's time beyond which a function in the loop's own process makes it slow."""
# Creates the iterator of a loader, and starts its workers.
_ITERATES: Final = regex(
    r"(^|[/\\])torch[/\\]utils[/\\]data[/\\]dataloader\.py\(\d+\): _get_iterator$"
)
_OF_LOADER: Final = regex(r"(^|[/\\])torch[/\\]utils[/\\]data[/\\]|^<built-in function next>$")


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the steps wait for data."""
    steps = ctx.steps
    rows = ctx.data_waits[ctx.step_of(ctx.data_waits) >= 0]
    if not len(rows):
        return

    waiting = covered_by(ctx.events, rows)
    # While a GPU still works, the wait costs nothing.
    starved = intersect(waiting, idle_in_windows(ctx)) if ctx.has_device_work else waiting
    starved_ns = covered_within(starved, steps.starts_ns, steps.ends_ns)
    length_ns = np.maximum(steps.ends_ns - steps.starts_ns, 1)

    waited_ns = covered_within(waiting, steps.starts_ns, steps.ends_ns)
    total_ns, idle_ns = int(waited_ns.sum()), int(starved_ns.sum())
    loads = _select_loader(ctx, rows)
    loader = ctx.events.name_of(int(loads[0]))

    is_starved = _is_starved(starved_ns, length_ns, thresholds)
    has_workers = _WITH_WORKERS in loader
    hidden = find_hidden_waits(ctx, total_ns // len(steps)) if has_workers else None
    location = next(location for location, _ in ctx.by_line(rows))
    # Workers that have just started have no batch ready: their starts are another finding's.
    waited_per_step_ns = hidden.waiting_ns if hidden is not None else total_ns // len(steps)
    if has_workers and measure_restarts_of_loop(ctx, location) >= waited_per_step_ns:
        return

    # A recording that shows less than half of the waits is not what to judge them by.
    if hidden is not None and not (is_starved and total_ns >= hidden.waiting_ns * len(steps)):
        yield _build_hidden_finding(ctx, rows, loader, hidden, is_starved=is_starved)
        return
    if not is_starved:
        return

    function = _find_main_function(ctx, loads) if _IN_PROCESS in loader else ""
    mostly = f", mostly {function_name(function)}" if function else ""
    sampled = _find_sampled_function(ctx, loader, location)

    # A loop that creates its iterator in each step repeats the start, which a fix may keep.
    restarts = np.flatnonzero(rows_named(ctx.events, _ITERATES, Category.PYTHON))
    n_restarts = np.count_nonzero(distinct(ctx.step_of(restarts)) >= 0)
    is_restarted = n_restarts >= thresholds.min_steps_share * len(steps)

    wait = LoaderWait(rows, total_ns / len(steps), windows_ns(ctx) / len(steps), sampled)
    is_bound = is_restarted or (_IN_PROCESS in loader and is_limited_by_cores(ctx, wait))
    change = ProgramChange(scaled=((rows, 0.0),))
    yield measure_saving(ctx, change, "upper-bound" if is_bound else "replay").finding(
        INFO,
        confidence="high" if len(steps) > 1 else "low",
        message=_build_message(ctx, at(location), mostly, total_ns, idle_ns)
        + _describe_function(sampled),
        fix=_suggest_fix(ctx, loader, wait),
        locations=known_locations(location, *([] if sampled is None else [sampled.location])),
        rows=rows,
        n=len(outermost_calls(ctx.events, ctx.tree, rows)),
        evidence={
            "loader": loader,
            "loader_ns": waited_ns[:MAX_EVENT_IDS].tolist(),
            "device_idle_ns": starved_ns[:MAX_EVENT_IDS].tolist() if ctx.has_device_work else None,
            **_collect_evidence(sampled),
        },
        spans=waiting.pairs(),
    )


def _is_starved(starved_ns: Int64s, length_ns: Int64s, thresholds: Thresholds) -> bool:
    """Return whether the steps wait for data, by the wait and the length of each."""
    # The first step often waits for the loader's start, and counts only among others.
    is_starved = starved_ns >= thresholds.min_step_share * length_ns
    if not (is_starved[1:].any() or len(is_starved) == 1):
        return False
    # Workers that are too slow empty the queue now and then: few steps wait, for long.
    later_share = starved_ns[1:].sum() / length_ns[1:].sum() if is_starved[1:].sum() > 1 else 0.0
    is_often = is_starved.mean() >= thresholds.min_steps_share
    return bool(is_often or later_share >= thresholds.min_later_share)


def _build_hidden_finding(
    ctx: Context, rows: Rows, loader: str, hidden: HiddenWaits, *, is_starved: bool
) -> Finding:
    """Build the finding of steps that wait for data longer than the recorded ones.

    Args:
        is_starved: Whether the recorded ones wait, too.
    """
    recorded = "waited for less" if is_starved else "found theirs ready"
    location = next(location for location, _ in ctx.by_line(rows))
    sampled = _find_sampled_function(ctx, loader, location)
    wait = LoaderWait(rows, hidden.waiting_ns, hidden.step_ns, sampled)

    # No replay of the recorded steps can save what they do not wait for.
    return INFO.finding(
        confidence="medium",
        message=(
            f"The loop{at(location)} waits for its next batch for {format_share(hidden.share)} of "
            f"each {format_ns(hidden.step_ns)} step, by {hidden.n_samples} samples over "
            f"{hidden.n_steps} steps. The recorded ones {recorded}."
        )
        + _describe_function(sampled),
        fix=_suggest_fix(ctx, loader, wait),
        locations=known_locations(location, *([] if sampled is None else [sampled.location])),
        n=hidden.n_steps,
        cost=Cost(per_step_ns=hidden.waiting_ns, basis="estimate"),
        evidence={
            "loader": loader,
            "sampled_wait_share": hidden.share,
            "sampled_step_ns": hidden.step_ns,
            "n_sampled_steps": hidden.n_steps,
            "is_recorded": is_starved,
            **_collect_evidence(sampled),
        },
    )


def _select_loader(ctx: Context, rows: Rows) -> Rows:
    """Select the waits for the loader that takes longest.

    Waits may be nested: ``profkit.steps(tqdm(loader))`` measures one around the ``DataLoader``'s.
    """
    waits = rows[rows_named(ctx.events, _LOADER, Category.ANNOTATION, Category.OP)[rows]]
    waits = waits if len(waits) else rows
    name = ctx.events.name[waits]
    return np.asarray(waits[name == np.argmax(np.bincount(name, ctx.events.dur_ns[waits]))])


def _find_main_function(ctx: Context, loads: Rows) -> str:
    """Find the function in which a loader spends most of its time; empty if it is torch's own."""
    below = ctx.events.rows_of(Category.PYTHON)
    below = below[ctx.nearest(loads)[below] != NO_ROW]
    waiting = covered_by(ctx.events, loads)
    name = find_innermost_callee(ctx, loads, below, waiting, waiting.total_ns)
    return "" if _OF_LOADER.search(name) else name


def _find_sampled_function(ctx: Context, loader: str, loop: Location) -> LoaderFunction | None:
    """Find the function that makes the loader's batches slow, from sampled stacks.

    The loop's own process takes indices from the sampler also where workers prepare batches.
    """
    in_loop = find_function_in_loop(ctx, loop)
    if _WITH_WORKERS not in loader:
        return in_loop
    is_sampler = in_loop is not None and in_loop.part == "sampler" and in_loop.library != TORCH
    if in_loop is not None and is_sampler and in_loop.share >= _MOST:
        return in_loop
    return find_function_in_workers(ctx)


def _collect_evidence(sampled: LoaderFunction | None) -> dict[str, float | None]:
    return {
        "function_share": None if sampled is None else sampled.share,
        "workers_busy_share": None if sampled is None else sampled.busy_share,
    }


def _describe_function(sampled: LoaderFunction | None) -> str:
    """Return the sentence on the function in which batches are prepared; empty without one."""
    if sampled is None:
        return ""
    share, where = format_share(sampled.share), call_text(sampled.callee, sampled.location, "`")
    if sampled.part == "sampler":
        return f" {share} of it is spent on the indices of the batch, in {where}."
    if sampled.busy_share is None:
        return f" {share} of the time in the loader is spent in {where}."
    busy = format_share(sampled.busy_share)
    return f" Its workers are busy {busy} of the time, {share} of it in {where}."


def _build_message(ctx: Context, place: str, mostly: str, total_ns: int, idle_ns: int) -> str:
    share = format_share(total_ns / windows_ns(ctx))
    waits = f"waits {time_per_step(ctx, total_ns)} ({share}) for its next batch"
    text = f"The loop{place} {waits}{mostly}."
    if ctx.has_device_work:
        idle = f"{format_ns(idle_ns / len(ctx.steps))} ({format_share(idle_ns / windows_ns(ctx))})"
        return f"{text} The GPU is idle for {idle} of it."
    return text


def _suggest_fix(ctx: Context, loader: str, wait: LoaderWait) -> str:
    if wait.function is not None and wait.is_of_sampler:
        return suggest_for_sampler(wait.function)
    if _WITH_WORKERS in loader:
        return suggest_for_workers(ctx, wait)
    if _IN_PROCESS in loader:
        return suggest_workers(ctx, wait)
    return (
        "Prepare the next batch in parallel with the model: in a `DataLoader` with `num_workers`, "
        "or in a thread that fills a queue."
    )
