"""PRF005 truncated: the trace file is incomplete.

What it finds:
    A trace whose text, or whose compressed data, ends before its list of events does, and how much
    of it was read.

Why it matters:
    The job was killed while the trace was written, or the copy was interrupted. Everything before
    the end was read; the rest is missing from every figure. Events are written kind by kind and
    not in the order of time, so all kernels may be missing.

How to fix it:
    Write the trace before the job's time limit, copy the file again, or record fewer steps.

Example:
    ::

        prof.export_chrome_trace("trace.json")  # killed while writing

Use instead:
    ::

        with profkit.trace("step"):  # writes the whole file, or none
            train_step(batch)

Reads:
    Whether the list of events was closed, the size of the text in bytes, and the number of events
    that were read.

When to ignore this:
    A program writes a list without closing it on purpose, as the Trace Event Format allows: then
    nothing is missing.

Source:
    Trace Event Format, "JSON Array Format": the closing bracket is optional.
"""

from collections.abc import Iterator

from profkit.rule import Context, Finding, RuleInfo, dataclass, format_bytes, format_count, needs

INFO = RuleInfo(
    id="PRF005",
    name="truncated",
    title="Trace file is truncated",
    severity="warning",
    needs=(needs.TRACE,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """None: a file is complete or not."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the file is incomplete."""
    notes = ctx.trace.notes
    if not notes.truncated:
        return

    yield INFO.finding(
        confidence="high",
        message=(
            f"The file is truncated after {format_count(notes.n_events)} events "
            f"({format_bytes(notes.uncompressed_bytes)} of text). The rest is missing."
        ),
        fix="Copy the file again, or record again with time left to write it.",
        evidence={"n_events": notes.n_events, "uncompressed_bytes": notes.uncompressed_bytes},
    )
