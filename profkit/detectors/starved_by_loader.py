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
    themselves begin to iterate over a loader: the first batch can't be ready then. Of steps that
    were not recorded it is their sampled wait, an estimate.

How to fix it:
    Give the loader workers, so that batches are prepared while the GPU works; make them persistent
    and pin their memory. If it has workers already: use more of them, a larger
    ``prefetch_factor``, or do less work per sample. Pipelines and the ``Trainer`` of Transformers
    make their loader themselves: they take the number of workers as an argument.

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

from profkit.engine.families.loader_functions import (
    LoaderFunction,
    find_function_in_loop,
    find_function_in_workers,
    find_hidden_waits,
)
from profkit.engine.families.python_calls import (
    TRANSFORMERS_PIPELINE,
    TRANSFORMERS_TRAINER,
    are_within,
    find_innermost_callee,
    function_name,
)
from profkit.engine.families.sampled_texts import call_text
from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import distinct
from profkit.index.intervals import Intervals, covered_by, covered_within, intersect
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

    if not _is_starved(starved_ns, length_ns, thresholds):
        yield from _report_hidden_waits(ctx, rows, waiting)
        return

    waited_ns = covered_within(waiting, steps.starts_ns, steps.ends_ns)
    total_ns, idle_ns = int(waited_ns.sum()), int(starved_ns.sum())
    location = next(location for location, _ in ctx.by_line(rows))
    loads = _select_loader(ctx, rows)
    loader = ctx.events.name_of(int(loads[0]))
    function = _find_main_function(ctx, loads) if _IN_PROCESS in loader else ""
    mostly = f", mostly {function_name(function)}" if function else ""
    sampled = _find_sampled_function(ctx, loader, location)

    # A loop that creates its iterator in each step repeats the start, which a fix may keep.
    restarts = np.flatnonzero(rows_named(ctx.events, _ITERATES, Category.PYTHON))
    n_restarts = np.count_nonzero(distinct(ctx.step_of(restarts)) >= 0)
    is_restarted = n_restarts >= thresholds.min_steps_share * len(steps)

    change = ProgramChange(scaled=((rows, 0.0),))
    yield measure_saving(ctx, change, "upper-bound" if is_restarted else "replay").finding(
        INFO,
        confidence="high" if len(steps) > 1 else "low",
        message=_build_message(ctx, at(location), mostly, total_ns, idle_ns)
        + _describe_function(sampled),
        fix=_suggest_fix(ctx, rows, loader, sampled),
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


def _report_hidden_waits(ctx: Context, rows: Rows, waiting: Intervals) -> Iterator[Finding]:
    """Yield a finding on steps that wait for data, though the recorded ones do not."""
    steps = ctx.steps
    waited_ns = covered_within(waiting, steps.starts_ns, steps.ends_ns).sum() // len(steps)
    hidden = find_hidden_waits(ctx, int(waited_ns))
    loader = ctx.events.name_of(int(_select_loader(ctx, rows)[0]))
    if hidden is None or _WITH_WORKERS not in loader:
        return

    location = next(location for location, _ in ctx.by_line(rows))
    sampled = _find_sampled_function(ctx, loader, location)
    # No replay of the recorded steps can save what they do not wait for.
    yield INFO.finding(
        confidence="medium",
        message=(
            f"The loop{at(location)} waits for its next batch for {format_share(hidden.share)} of "
            f"each {format_ns(hidden.step_ns)} step, by {hidden.n_samples} samples over "
            f"{hidden.n_steps} steps. The recorded ones found theirs ready."
        )
        + _describe_function(sampled),
        fix=_suggest_fix(ctx, rows, loader, sampled),
        locations=known_locations(location, *([] if sampled is None else [sampled.location])),
        n=hidden.n_steps,
        cost=Cost(per_step_ns=hidden.waiting_ns, basis="estimate"),
        evidence={
            "loader": loader,
            "sampled_wait_share": hidden.share,
            "sampled_step_ns": hidden.step_ns,
            "n_sampled_steps": hidden.n_steps,
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
    """Find the function that makes the loader's batches slow, from sampled stacks."""
    if _WITH_WORKERS in loader:
        return find_function_in_workers(ctx)
    return find_function_in_loop(ctx, loop)


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
    if sampled.busy_share is None:
        return f" {share} of the time in the loader is spent in {where}."
    busy = format_share(sampled.busy_share)
    return f" Its workers are busy {busy} of the time, {share} of it in {where}."


def _build_message(ctx: Context, place: str, mostly: str, total_ns: int, idle_ns: int) -> str:
    share = format_share(total_ns / windows_ns(ctx))
    waits = f"waits {time_per_step(ctx, total_ns)} ({share}) for its next batch"
    text = f"The loop{place} {waits}{mostly}."
    if ctx.has_device_work:
        return f"{text} The GPU is idle for {format_ns(idle_ns / len(ctx.steps))} of it."
    return text


def _suggest_fix(ctx: Context, rows: Rows, loader: str, sampled: LoaderFunction | None) -> str:
    name = "" if sampled is None else sampled.callee or sampled.location.function
    less = f"do less in `{name}`" if name else "do less per sample in the dataset's `__getitem__`"
    if _WITH_WORKERS in loader:
        is_idle = sampled is not None and sampled.is_mostly_idle
        return _suggest_for_workers(ctx, less, is_idle=is_idle)
    if _IN_PROCESS in loader:
        return _suggest_workers(ctx, rows, less)
    return (
        "Prepare the next batch in parallel with the model: in a `DataLoader` with `num_workers`, "
        "or in a thread that fills a queue."
    )


def _count_cores(ctx: Context) -> int | None:
    """Return the cores that a rank has, or None if that is not known."""
    threads = None if ctx.trace.capture is None else ctx.trace.capture.threads
    return None if threads is None else max(1, threads.n_cores // threads.n_ranks)


def _suggest_for_workers(ctx: Context, less: str, *, is_idle: bool) -> str:
    """Return the fix of a loader that has workers.

    Args:
        less: How to make each batch cheaper.
        is_idle: Whether the workers wait most of the time.
    """
    if is_idle:
        return (
            "Raise `prefetch_factor`, so that batches are ready ahead: the workers wait most of "
            "the time, and more of them are no help."
        )

    capture, n_cores = ctx.trace.capture, _count_cores(ctx)
    n_workers = 0 if capture is None or capture.threads is None else capture.threads.n_workers
    # More workers than cores would take turns.
    if n_cores is not None and n_workers >= n_cores:
        return (
            f"D{less[1:]}: the loader's workers are too slow, and there are no cores for more of "
            "them."
        )
    return (
        f"Raise `num_workers` or `prefetch_factor`, or {less}: the loader's workers are too slow."
    )


def _suggest_workers(ctx: Context, rows: Rows, less: str) -> str:
    """Return the fix of a loader that prepares batches in the loop's own process.

    Args:
        less: How to make each batch cheaper.
    """
    if are_within(ctx, rows, TRANSFORMERS_PIPELINE):
        return (
            "Call the pipeline of Transformers with many inputs at once and `num_workers=1` (more "
            "if it does not divide inputs into chunks), so that they are prepared in parallel with "
            "the model; or do less per input."
        )

    # Without a GPU pinning only warns, and the model needs the cores itself.
    n_workers = min(4 if ctx.has_device_work else 2, _count_cores(ctx) or 4)
    if are_within(ctx, rows, TRANSFORMERS_TRAINER):
        return (
            f"Pass `dataloader_num_workers={n_workers}, dataloader_persistent_workers=True` to "
            "`TrainingArguments`, so that batches are prepared in parallel with the model, or "
            f"{less}."
        )
    pinned = ", pin_memory=True" if ctx.has_device_work else ""
    return (
        f"Use `DataLoader(..., num_workers={n_workers}, persistent_workers=True{pinned})`, so "
        f"that batches are prepared in parallel with the model, or {less}."
    )
