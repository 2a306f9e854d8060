"""The recording as a trace for Perfetto and Chrome, with the findings on its timeline.

The events of the recording stay as they are written. Added is a process called ``profkit``: a row
of the steps; a slice for each finding, with the message and the cure among its details; what each
device was idle for; counters of how busy the devices were, how much work waited in their queues and
how much memory was in use. The events that a finding rests on carry a mark, and an arrow leads to
them. All that is added has the category ``profkit``: profkit itself passes over it, so the product
can be analyzed, and exported, again.

Without a recording, and for what is no trace, the same rows stand alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from profkit.model.report import Report
from profkit.model.trace import Trace
from profkit.present.renderer import LoadedRecording, RendererInfo
from profkit.readers.kineto.append import with_events
from profkit.readers.stream import default_limit_bytes, place_of

__all__ = ["INFO", "Options", "pieces", "render"]

INFO = RendererInfo(
    name="chrome",
    suffix=".trace.json",
    media_type="application/json",
    shows="recording",
    opened_by="https://ui.perfetto.dev or chrome://tracing",
)


@dataclass(frozen=True)
class Options:
    """What the trace is made from.

    Attributes:
        recording: What the report was made from; without it the findings stand alone.
        base: An absolute folder; paths inside are shown relative to it.
    """

    recording: LoadedRecording | None = None
    base: str = ""


def render(report: Report, options: Options) -> bytes:
    """The trace as JSON.

    Args:
        options: What it was made from.
    """
    return b"".join(pieces(report, options))


def pieces(report: Report, options: Options) -> Iterator[bytes]:
    """The trace as JSON, piece by piece: memory does not grow with it.

    Args:
        options: What it was made from.

    Raises:
        LoadError: The trace cannot be read any more.
    """
    from profkit.renderers.chrome._annotations import added  # noqa: PLC0415  (other formats need none of it)

    context = options.recording.context if options.recording is not None else None
    if context is None or not context.has_trace:
        events = added(report, context, options.base, origin_ns=0)
        yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
        yield b",\n".join(events)
        yield b"\n]}\n"
        return
    trace = context.trace
    yield from with_events(
        place_of(trace.path),
        lambda base_ns: added(report, context, options.base, origin_ns=trace.base_ns - base_ns),
        _limit_bytes(trace),
    )


def _limit_bytes(trace: Trace) -> int:
    """As much as was read of it, whatever limit that was allowed by; it may have grown since."""
    return max(default_limit_bytes(place_of(trace.path)), trace.notes.uncompressed_bytes)
