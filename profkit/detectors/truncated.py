"""PRF005 truncated: the recording ends in the middle.

What it finds:
    A trace whose text, or whose packing, ends before its list of events does, and how much could
    be read of it.

Why it matters:
    The job was killed while the trace was written, or the copy broke off. Everything before the
    cut was read; what is after it is missing from every figure. Events are written kind by kind,
    not in the order of time, so it may be the whole work of the device that is missing.

How to fix it:
    Write the trace before the job's time runs out, copy the file again, or record fewer steps.

Example:
    ::

        prof.export_chrome_trace("trace.json")  # killed on the way

Use instead:
    ::

        with profkit.trace("step"):  # appears whole, or not at all
            train_step(batch)

Reads:
    Whether the list of events was closed, the size of the text in bytes, and the number of events
    that were read.

When to ignore this:
    Where a program writes a list without closing it on purpose, as the Trace Event Format allows
    for bare lists: then nothing is missing.

Source:
    Trace Event Format, "JSON Array Format": the closing bracket is optional.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.model.finding import Finding
from profkit.units import format_bytes, format_count

INFO = RuleInfo(
    id="PRF005",
    name="truncated",
    title="The recording ends in the middle",
    severity="warning",
    needs=(needs.TRACE,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """There is nothing to weigh: a file ends properly, or it does not."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding if the file was cut off."""
    notes = ctx.trace.notes
    if not notes.truncated:
        return
    yield INFO.finding(
        severity="warning",
        confidence="high",
        message=(
            f"The file ends in the middle. {format_count(notes.n_events)} events were read, in "
            f"{format_bytes(notes.uncompressed_bytes)} of text; what came after is not known."
        ),
        fix="Copy the file again, or record again with time left to write it.",
        evidence={"n_events": notes.n_events, "uncompressed_bytes": notes.uncompressed_bytes},
    )
