"""PRF006 odd-trace: the trace is inconsistent or incomplete.

What it finds:
    A file that ends before its list of events does, or goes on after it with a second one. Entries
    that are no events, begins without an end, and events with invalid times: not a number, a
    negative duration, a duration of more than a year, one event that alone makes the trace many
    times as long, a kernel that contains many later ones of its stream, or work of a GPU whose
    times the profiler has lost and writes as 0. Events of kinds that profkit does not know, which
    other profilers and converters write. Operators of several processes, whose traces a tool joined
    to one file. Invalid parts of what profkit recorded beside the events, such as source lines that
    refer to operators that do not exist. A note names operators and regions within which the
    profiler was stopped.

Why it matters:
    Events are written kind by kind and not in the order of time, so a truncated file may lack all
    kernels. One kernel with a duration of years dominates every total: such events are skipped, but
    others of the file may be wrong and cannot be recognized. Events of unknown kinds are in no
    figure; where they are the work of an accelerator, the program looks as if it ran on the CPU
    alone. Each process numbers its GPUs, launches and threads on its own: in one file the GPUs with
    the same number look like one GPU, and a launch is matched with kernels of another process.

How to fix it:
    Copy a truncated file again, or write it before the job's time limit and record fewer steps.
    Record again with a newer PyTorch and driver where times are invalid: most such events are bugs
    of a profiler that have been fixed. Against lost times, export a trace before another profiler
    stops in the process. Where PyTorch's own profiler supports the device, record with it: it
    writes device work as ``kernel``, ``gpu_memcpy`` and ``gpu_memset``. Analyze the traces of
    several processes in one folder, and profkit compares the ranks.

Example:
    ::

        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.0, "dur": 18446744073709551.6}

Use instead:
    ::

        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.0, "dur": 41.4}

Reads:
    Starts and durations of all events in nanoseconds, before any is skipped; their categories, as
    known and as written; the processes of all operators; whether the list of events was closed, and
    the size of the text in bytes; the key ``profkit``.

When to ignore this:
    A program writes a list without closing it on purpose, as the Trace Event Format allows. A
    single event really took more than ten minutes, and ten times as long as all others together.
    Events of unknown kinds are marks of a tool, and no work.

Source:
    Trace Event Format, "JSON Array Format" (the closing bracket is optional);
    ``profkit/readers/kineto/invalid_times.py``, which defines which events are skipped;
    ``ApproximateClockToUnixTimeConverter`` of libkineto, for lost times;
    ``libkineto/include/ActivityType.h``, which has the categories that PyTorch's profiler writes;
    SGLang's ``ProfileMerger``, which writes ``[TP00] 1234`` as the process.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    LOST_TIME,
    MAX_EVENT_IDS,
    WITHOUT_WORK,
    Category,
    Context,
    Finding,
    LoadNotes,
    Rows,
    RuleInfo,
    dataclass,
    event_ids,
    format_bytes,
    format_count,
    format_share,
    middle_cut,
    needs,
    torch_names,
    visible,
)

INFO = RuleInfo(
    id="PRF006",
    name="odd-trace",
    title="Trace is inconsistent or incomplete",
    severity="note",
    needs=(needs.TRACE,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)
_MAX_NAMED: Final = 3
_MAX_NAME: Final = 40


@dataclass(frozen=True)
class Thresholds:
    """When odd events are a warning, or matter at all.

    Attributes:
        warning_share: Share of the events with invalid times from which it is a warning: from a
            thousandth on it is more than a single error.
        min_foreign_share: Minimum share of all events that are of unknown kinds, and of all
            operators that are a second process's. Fewer than a hundredth are marks of a tool.
    """

    warning_share: float = 0.001
    min_foreign_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each way in which the file is not one whole, valid trace."""
    yield from _report_text(ctx.trace.notes)
    yield from _report_unfinished(ctx)
    yield from _report_skipped(ctx.trace.notes, thresholds)
    yield from _report_unknown(ctx, thresholds)
    yield from _report_processes(ctx, thresholds)


def _report_text(notes: LoadNotes) -> Iterator[Finding]:
    """Yield findings for a file that ends early or goes on, and for invalid metadata."""
    if notes.truncated:
        yield INFO.finding(
            severity="warning",
            confidence="high",
            message=(
                f"The file is truncated after {format_count(notes.n_events)} events "
                f"({format_bytes(notes.uncompressed_bytes)} of text). The rest is missing."
            ),
            fix="Copy the file again, or record again with time left to write it.",
            evidence={"n_events": notes.n_events, "uncompressed_bytes": notes.uncompressed_bytes},
        )

    if notes.invalid_metadata:
        yield INFO.finding(
            severity="warning",
            confidence="high",
            message=(
                "What profkit recorded beside the events is invalid and is not used: "
                f"{', '.join(f'`{name}`' for name in notes.invalid_metadata)}."
            ),
            fix="Record again, or use the file as profkit wrote it.",
            n=len(notes.invalid_metadata),
        )

    if notes.n_unread_bytes:
        yield INFO.finding(
            severity="warning",
            confidence="high",
            message=(
                f"The file goes on for {format_bytes(notes.n_unread_bytes)} after its events, with "
                "a second list of events or another trace, which was ignored."
            ),
            fix="Write each trace to a file of its own.",
        )


def _report_unfinished(ctx: Context) -> Iterator[Finding]:
    """Yield a note if the profiler was stopped within operators or regions of the program."""
    events = ctx.events
    rows = events.rows_of(Category.UNFINISHED)
    capture = ctx.trace.capture
    if not len(rows) or (capture is not None and capture.open_step):
        return

    # The step that the stop cut off is reported as incomplete, with all events in it.
    steps = np.flatnonzero(rows_named(events, torch_names.STEP, Category.UNFINISHED))
    cut_ns = events.ts_ns[steps].min(initial=np.iinfo(np.int64).max)
    rows = rows[events.ts_ns[rows] < cut_ns]
    if not len(rows):
        return

    n = len(rows)
    subject = (
        "One operator or region has" if n == 1 else f"{format_count(n)} operators and regions have"
    )
    example = f"`{visible(events.name_of(rows[0]))}`"
    named = f", {example}, which is" if n == 1 else f", such as {example}; they are"

    yield INFO.finding(
        severity="note",
        confidence="high",
        message=(
            f"{subject} no known end, because the profiler was stopped within{named} not counted."
        ),
        fix="Stop the profiler between two steps, outside of operators and `record_function`.",
        n=n,
        evidence={"events": event_ids(ctx, rows)},
    )


def _report_skipped(notes: LoadNotes, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if entries were skipped, such as events with invalid times."""
    n = notes.n_invalid + notes.n_skipped + notes.n_unpaired
    if not n:
        return

    share = n / max(notes.n_events, 1)
    yield INFO.finding(
        severity="warning" if share >= thresholds.warning_share else "note",
        confidence="high",
        message=(
            f"{format_count(n)} of {format_count(notes.n_events)} events ({format_share(share)}) "
            f"were skipped and are excluded from all totals: {', '.join(_describe_kinds(notes))}."
        ),
        fix=(
            "Export a trace before another `torch.profiler` stops in the same process: "
            "in `on_trace_ready`, or right after its block."
            if any(event.reason == LOST_TIME for event in notes.invalid)
            else "Record again with a newer PyTorch and driver."
        ),
        n=n,
        evidence={"events": [event.position for event in notes.invalid]},
    )


def _describe_kinds(notes: LoadNotes) -> Iterator[str]:
    """Describe the kinds of skipped events; for invalid times with the first event's name."""
    if notes.invalid:
        first = notes.invalid[0]
        example = f"{first.name} ({first.reason})"
        yield f"{format_count(notes.n_invalid)} with invalid times, such as {example}"
    if notes.n_skipped:
        yield f"{format_count(notes.n_skipped)} that are no events"
    if notes.n_unpaired:
        yield f"{format_count(notes.n_unpaired)} that begin without an end, or end without a begin"


def _report_unknown(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if many events are of unknown kinds, such as those of an accelerator."""
    events = ctx.events
    rows = events.rows_of(Category.OTHER)
    counts = ctx.trace.notes.categories
    # Kineto describes some work a second time, in categories of their own.
    n = len(rows) - sum(count for text, count in counts.items() if text.lower() in WITHOUT_WORK)
    if n <= 0 or n < thresholds.min_foreign_share * len(events):
        return

    n_by_process = _count_by(ctx, rows, [lane.process for lane in events.lanes])
    named = ", such as those of " + _list_names(n_by_process) if n_by_process else ""
    yield INFO.finding(
        severity="warning",
        confidence="high",
        message=(
            f"{format_count(n)} of {format_count(len(events))} events "
            f"({format_share(n / len(events))}) are of kinds that profkit does not know, and are "
            f"not counted{named}."
        ),
        fix=(
            "If they are work of a device, its busy and idle time are not in this report: look at "
            "them in ui.perfetto.dev, or record with a `torch.profiler` that supports the device."
        ),
        n=n,
        evidence={"unknown_events": event_ids(ctx, rows)},
    )


def _report_processes(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if operators of several processes were recorded."""
    ops = ctx.events.rows_of(Category.OP)
    n_min = thresholds.min_foreign_share * len(ops)
    n_by_process = _count_by(ctx, ops, [lane.pid for lane in ctx.events.lanes])
    processes = [pid for pid, n in n_by_process.items() if n >= n_min]
    if len(processes) < 2:  # noqa: PLR2004  (several)
        return

    yield INFO.finding(
        severity="warning",
        confidence="high",
        message=(
            f"The file has operators of {format_count(len(processes))} processes "
            f"({_list_names(processes)}{', …' if len(processes) > _MAX_NAMED else ''}): GPUs with "
            "the same number count as one, and launches may be matched with kernels of another "
            "process."
        ),
        fix="Analyze the traces from which the file was merged, all in one folder.",
        n=len(processes),
        evidence={"processes": processes[:MAX_EVENT_IDS]},
    )


def _count_by(ctx: Context, rows: Rows, names: Sequence[str]) -> dict[str, int]:
    """Count events by a name of their thread, most events first.

    Args:
        names: A name for each thread, such as its process; events of threads without one are left
            out.
    """
    n_of_lane = np.bincount(ctx.events.lane[rows], minlength=len(names)).tolist()
    counts: Counter[str] = Counter()
    for name, n in zip(names, n_of_lane, strict=True):
        if n and name:
            counts[name] += n
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _list_names(names: Iterable[str]) -> str:
    """List the first names as code, in quotes: ```CANN`, `NPU```."""
    return ", ".join(f"`{middle_cut(name, _MAX_NAME)}`" for name in [*names][:_MAX_NAMED])
