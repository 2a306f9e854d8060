"""PRF006 odd-events: the recording holds events that cannot be as they are written.

What it finds:
    Entries that are no events, begins without an end, and events whose times make no sense: no
    number, a negative length, a length beyond a year, or one event that alone makes the recording
    many times as long.

Why it matters:
    One kernel of a length of years becomes the total, and every share of it nonsense. So such
    events are set aside: no figure of the report holds them. But a recording that has them may
    hold others that are wrong and do not show it.

How to fix it:
    Record again, with a newer PyTorch and driver: most such events are faults of a profiler that
    have been mended since.

Example:
    ::

        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.0, "dur": 18446744073709551.6}

Use instead:
    ::

        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.0, "dur": 41.4}

Reads:
    Starts and lengths of all events in nanoseconds, before any is set aside.

When to ignore this:
    Where a single event really lasted more than ten minutes, and ten times as long as all others
    together.

Source:
    ``profkit/readers/kineto/invalid_times.py``, which sets them aside and says by which measure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.model.finding import Finding
from profkit.model.trace import LoadNotes
from profkit.units import format_count, format_share

INFO = RuleInfo(
    id="PRF006",
    name="odd-events",
    title="Some events cannot be as they are written",
    severity="note",
    needs=(needs.TRACE,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When odd events lower the trust in all figures.

    Attributes:
        warning_share: Share of the events. From a thousandth on they are no single accident.
    """

    warning_share: float = 0.001


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding if events were set aside."""
    notes = ctx.trace.notes
    n = notes.n_odd + notes.n_skipped + notes.n_unpaired
    if not n:
        return
    share = n / max(notes.n_events, 1)
    yield INFO.finding(
        severity="warning" if share >= thresholds.warning_share else "note",
        confidence="high",
        message=(
            f"{format_count(n)} of {format_count(notes.n_events)} events ({format_share(share)}) "
            f"were set aside: {', '.join(_kinds(notes))}. No figure holds them."
        ),
        fix="Record again with a newer PyTorch and driver, and doubt figures that look odd.",
        n=n,
        evidence={"events": [odd.position for odd in notes.odd]},
    )


def _kinds(notes: LoadNotes) -> Iterator[str]:
    """What was set aside, in words; of odd times the first by name."""
    if notes.odd:
        first = notes.odd[0]
        yield f"{format_count(notes.n_odd)} with odd times, such as {first.name} ({first.reason})"
    if notes.n_skipped:
        yield f"{format_count(notes.n_skipped)} that are no events"
    if notes.n_unpaired:
        yield f"{format_count(notes.n_unpaired)} that begin without an end, or end without a begin"
