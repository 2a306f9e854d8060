"""The recording as a trace for Perfetto and Chrome, with the findings on its timeline.

The events of the recording are copied unchanged, except for profkit's own events: its threads, its
calls in the program's threads, and what started the program are left out, and its time in the
program's threads is marked. A process ``profkit`` is added: a row of the steps; a slice for each
finding, with its message, fix and cost as arguments; the segments of the critical path; the idle
time of each device by cause; counters of device utilization, queued launches and memory. The events
that a finding refers to have a marker, and an arrow from the finding. All added events have the
category ``profkit``, which profkit ignores, so that the product can be analyzed and exported again.

Without a trace the added rows are the whole product. The traces of the ranks of a job become one,
on one clock, in which each rank has its processes and one more with its collectives.
"""

from collections.abc import Iterator

from profkit.model.report import Report
from profkit.model.trace import Trace
from profkit.present.renderer import RecordingOptions as Options
from profkit.present.renderer import RendererInfo
from profkit.readers.kineto import keys
from profkit.readers.kineto.append import OwnPositions, with_events
from profkit.readers.stream import default_limit_bytes, place_of

__all__ = ["INFO", "Options", "pieces", "render"]

INFO = RendererInfo(
    name="chrome",
    suffix=".trace.json",
    media_type="application/json",
    shows="recording",
    opened_by="https://ui.perfetto.dev or chrome://tracing",
    joins_ranks=True,
)


def render(report: Report, options: Options) -> bytes:
    """Return the trace as JSON."""
    return b"".join(pieces(report, options))


def pieces(report: Report, options: Options) -> Iterator[bytes]:
    """Return the trace as JSON, piece by piece, in memory that does not grow with the trace.

    Raises:
        LoadError: The trace can no longer be read.
    """
    from profkit.renderers.chrome._annotations import write_annotations  # noqa: PLC0415  (loads NumPy)

    if report.lanes is not None:
        from profkit.renderers.chrome._ranks import write_job  # noqa: PLC0415  (as above)

        yield from write_job(report.lanes)
        return

    # A saved report and a monitored program have no trace to add to.
    context = options.recording.context if options.recording is not None else None
    if context is None or not context.has_trace:
        events = write_annotations(report, context, options.base, origin_ns=0)
        yield b'{%b:"ns",%b:[\n' % (keys.quote(keys.TIME_UNIT), keys.quote(keys.EVENTS))
        yield b",\n".join(events)
        yield b"\n]}\n"
        return

    trace = context.trace
    yield from with_events(
        place_of(trace.path),
        lambda base_ns: write_annotations(
            report, context, options.base, origin_ns=trace.base_ns - base_ns
        ),
        _limit_bytes(trace),
        own=OwnPositions.of(trace.events),
    )


def _limit_bytes(trace: Trace) -> int:
    """Return the size limit: at least what was read of the trace before."""
    return max(default_limit_bytes(place_of(trace.path)), trace.notes.uncompressed_bytes)
