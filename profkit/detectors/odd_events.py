"""PRF006 odd-events: the trace contains events with invalid times.

What it finds:
    Entries that are no events, begins without an end, and events with invalid times: not a number,
    a negative duration, a duration of more than a year, one event that alone makes the trace many
    times as long, a kernel that contains many later ones of its stream, or work of a GPU whose
    times the profiler has lost and writes as 0. Also a second trace or list of events after the
    first, and invalid parts of what profkit recorded beside the events, such as source lines that
    refer to operators that do not exist. A note names operators and regions within which the
    profiler was stopped.

Why it matters:
    One kernel with a duration of years dominates every total and share. Such events are skipped
    and excluded from all totals. But a trace that contains them may contain other wrong events
    that cannot be recognized.

How to fix it:
    Record again with a newer PyTorch and driver: most such events are bugs of a profiler that have
    been fixed. Against lost times, export a trace before another profiler stops in the process.

Example:
    ::

        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.0, "dur": 18446744073709551.6}

Use instead:
    ::

        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.0, "dur": 41.4}

Reads:
    Starts and durations of all events in nanoseconds, before any is skipped; the key ``profkit``.

When to ignore this:
    A single event really took more than ten minutes, and ten times as long as all others together.

Source:
    ``profkit/readers/kineto/invalid_times.py``, which defines which events are skipped;
    ``ApproximateClockToUnixTimeConverter`` of libkineto, for lost times.
"""

from collections.abc import Iterator

import numpy as np

from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    LOST_TIME,
    Category,
    Context,
    Finding,
    LoadNotes,
    RuleInfo,
    dataclass,
    event_ids,
    format_bytes,
    format_count,
    format_share,
    needs,
    torch_names,
    visible,
)

INFO = RuleInfo(
    id="PRF006",
    name="odd-events",
    title="Trace contains invalid events",
    severity="note",
    needs=(needs.TRACE,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """When invalid events are a warning.

    Attributes:
        warning_share: Share of the events from which it is a warning: from a thousandth on it is
            more than a single error.
    """

    warning_share: float = 0.001


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield findings for skipped events, dropped metadata, and text after the trace."""
    notes = ctx.trace.notes
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
                "a second list of events or another trace, which is in no figure."
            ),
            fix="Write each trace to a file of its own.",
        )

    yield from _report_unfinished(ctx)

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
            f"{subject} no known end, because the profiler was stopped within{named} in no figure."
        ),
        fix="Stop the profiler between two steps, outside of operators and `record_function`.",
        n=n,
        evidence={"events": event_ids(ctx, rows)},
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
