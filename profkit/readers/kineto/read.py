"""Read a Kineto trace: text in chunks, events in batches, columns."""

from dataclasses import replace
from typing import Final

from profkit.errors import NotATraceError
from profkit.model.trace import LoadNotes, Trace
from profkit.readers.gc_pause import without_garbage_collection
from profkit.readers.kineto import metadata
from profkit.readers.kineto.assemble import Tables, assemble
from profkit.readers.kineto.parallel import (
    PartialRead,
    join_others,
    processes_for,
    read_part,
    start_others,
)
from profkit.readers.kineto.split import Text
from profkit.readers.progress import OnProgress
from profkit.readers.stages import Stages
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_OTHER_FORMATS: Final = {
    b'"nodes"': "It looks like an execution trace (torch.profiler.ExecutionTraceObserver).",
    b'"resourceSpans"': "It looks like OpenTelemetry spans.",
    b'"$schema": "https://www.speedscope': "It looks like a speedscope profile.",
}


def read_kineto(
    place: Place, limit_bytes: int | None = None, on_progress: OnProgress | None = None
) -> Trace:
    """Read a trace.

    Args:
        place: A Kineto trace or an autograd profiler's array, packed or not.
        limit_bytes: How large it may become when it is unpacked; by default 4 GiB, or 200 times
            its size.
        on_progress: Is told how far the file has been read.

    Raises:
        LoadError: It cannot be read, or is no trace.
    """
    with without_garbage_collection():
        limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
        stages = Stages()
        text, chunks, reading = _read(place, limit, stages, processes_for(place), on_progress)
        if not text.found_events or reading.n_events == reading.n_skipped > 0:
            raise _not_a_trace(place, text, chunks.n_bytes)
        notes = LoadNotes(
            n_events=reading.n_events,
            n_complete=sum(batch.n_complete for batch in reading.share.values()),
            n_skipped=reading.n_skipped,
            categories=reading.words.category_counts,
            uncompressed_bytes=chunks.n_bytes,
            truncated=chunks.truncated or not text.complete or bool(text.rest),
        )
        with stages.stage("assemble"):
            header = metadata.header_of(text) or {}
            trace = _trace(place, header, assemble(reading.share, reading.words), notes)
        return replace(trace, notes=replace(trace.notes, stages_ns=stages.ns))


def _read(
    place: Place, limit: int, stages: Stages, n_processes: int, on_progress: OnProgress | None
) -> tuple[Text, Chunks, PartialRead]:
    """Read all batches, by several processes where that can be done."""
    text = Text()
    with open_plain(place, stages, on_progress) as stream:
        chunks = Chunks(stream, limit, stages)
        others = start_others(place, limit, n_processes)
        reading = read_part(chunks, text, stages, 0, n_processes)
    with stages.stage("join"):
        whole = join_others(reading, others)
    if whole:
        return text, chunks, reading
    return _read(place, limit, stages, 1, on_progress)


def _not_a_trace(place: Place, text: Text, n_bytes: int) -> NotATraceError:
    if not n_bytes:
        return NotATraceError(f"{place} is empty.", "Record it again; the program may have died.")
    if text.found_events:
        message = f"{place} has a list of events, but none of them is a trace event."
        return NotATraceError(message, "profkit reads what torch.profiler exports.")
    beginning = text.head[: 1 << 16]
    if not beginning.lstrip().startswith((b"{", b"[")):
        return NotATraceError(f"{place} is not JSON.", "profkit reads what torch.profiler exports.")
    guess = next((said for mark, said in _OTHER_FORMATS.items() if mark in beginning), "")
    message = f"{place} is JSON, but no profiler trace: it has no traceEvents."
    return NotATraceError(message, guess or "profkit reads what torch.profiler exports.")


def _trace(place: Place, header: metadata.Header, tables: Tables, notes: LoadNotes) -> Trace:
    capture = metadata.capture(header)
    rank, world_size = metadata.distributed(header)
    return Trace(
        path=str(place),
        events=tables.events,
        memory=tables.memory,
        base_ns=metadata.base_time_ns(header) + tables.start_ns,
        devices=metadata.devices(header),
        recorded_with=metadata.recorded_with(
            header,
            has_stacks="python_function" in notes.categories
            or len(tables.events.call_stack.rows) > 0,
            has_memory=len(tables.memory) > 0,
        ),
        torch=capture.torch if capture else None,
        rank=rank,
        world_size=world_size,
        host=metadata.host(header),
        versions=metadata.versions(header),
        capture=capture,
        notes=replace(
            notes,
            n_odd=tables.n_odd,
            odd=tables.odd,
            n_unpaired=tables.n_unpaired,
            messages=metadata.messages(header),
        ),
    )
