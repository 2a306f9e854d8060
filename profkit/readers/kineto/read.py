"""Reads a Kineto trace: text in chunks, events in batches, batches as columns."""

from dataclasses import replace
from typing import Final

from profkit.errors import NotATraceError
from profkit.model.trace import LoadNotes, Trace
from profkit.readers.kineto import metadata
from profkit.readers.kineto.assemble import TraceTables, assemble
from profkit.readers.kineto.capture_info import read_capture
from profkit.readers.kineto.flows import flow_correlation, need_flows
from profkit.readers.kineto.parallel import (
    PartialRead,
    join_workers,
    processes_for,
    read_part,
    start_workers,
)
from profkit.readers.kineto.split import TraceText
from profkit.readers.process_memory import garbage_collection_paused
from profkit.readers.progress import OnProgress, Stages
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_OTHER_FORMATS: Final = {
    b'"nodes"': "It seems to be an execution trace (torch.profiler.ExecutionTraceObserver).",
    b'"resourceSpans"': "It seems to be OpenTelemetry spans.",
    b'"$schema": "https://www.speedscope': "It seems to be a speedscope profile.",
}
_HINT: Final = "profkit reads what torch.profiler exports."


def read_kineto(
    place: Place, limit_bytes: int | None = None, on_progress: OnProgress | None = None
) -> Trace:
    """Read a Kineto trace or an autograd profiler's array; arguments as for ``readers.open.load``.

    Raises:
        LoadError: It cannot be read, or is not a trace.
    """
    with garbage_collection_paused():
        limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
        stages = Stages()
        text, chunks, part = _read(place, limit, stages, processes_for(place), on_progress)
        batches = part.batches.values()
        notes = LoadNotes(
            n_events=sum(batch.n_events for batch in batches),
            n_complete=sum(batch.n_complete for batch in batches),
            n_skipped=sum(batch.n_skipped for batch in batches),
            categories=part.interned.category_counts,
            uncompressed_bytes=chunks.n_bytes,
            truncated=chunks.truncated or not text.complete or bool(text.rest),
        )
        if not text.found_events or notes.n_events == notes.n_skipped > 0:
            raise _not_a_trace(place, text, chunks.n_bytes)
        with stages.stage("assemble"):
            header = metadata.header_of(text) or {}
            tables = assemble(part.batches, part.interned)
            if need_flows(tables.events):
                column = flow_correlation(place, limit, tables.events, tables.start_ns)
                tables = replace(tables, events=replace(tables.events, correlation=column))
            trace = _trace(place, header, tables, notes)
        return replace(trace, notes=replace(trace.notes, stages_ns=stages.ns))


def _read(
    place: Place, limit: int, stages: Stages, n_processes: int, on_progress: OnProgress | None
) -> tuple[TraceText, Chunks, PartialRead]:
    """Read all batches, in several processes if that succeeds."""
    text = TraceText()
    with open_plain(place, stages, on_progress) as stream:
        chunks = Chunks(stream, limit, stages)
        workers = start_workers(place, limit, n_processes)
        part = read_part(chunks, text, stages, 0, n_processes)
    with stages.stage("join"):
        complete = join_workers(part, workers)
    if complete:
        return text, chunks, part
    return _read(place, limit, stages, 1, on_progress)


def _not_a_trace(place: Place, text: TraceText, n_bytes: int) -> NotATraceError:
    if not n_bytes:
        return NotATraceError(f"{place} is empty.", "Record it again; the program may have died.")
    if text.found_events:
        message = f"{place} has a list of events, but none of them is a trace event."
        return NotATraceError(message, _HINT)
    beginning = text.head[: 1 << 16]
    if not beginning.lstrip().startswith((b"{", b"[")):
        return NotATraceError(f"{place} is not JSON.", _HINT)
    guess = next((format_ for mark, format_ in _OTHER_FORMATS.items() if mark in beginning), _HINT)
    message = f"{place} is JSON, but not a profiler trace: it has no traceEvents."
    return NotATraceError(message, guess)


def _trace(place: Place, header: metadata.Header, tables: TraceTables, notes: LoadNotes) -> Trace:
    capture, invalid_metadata = read_capture(bytes(header.get("profkit", b"null")))
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
        groups=metadata.groups(header),
        versions=metadata.versions(header),
        capture=capture,
        notes=replace(
            notes,
            n_invalid=tables.n_invalid,
            invalid=tables.invalid,
            n_unpaired=tables.n_unpaired,
            invalid_metadata=invalid_metadata,
            messages=metadata.messages(header),
        ),
    )
