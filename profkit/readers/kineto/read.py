"""Reads a Kineto trace: text in chunks, events in batches, batches as columns."""

from dataclasses import replace
from typing import Final

from profkit.errors import NotATraceError
from profkit.model.events import Category
from profkit.model.trace import LoadNotes, Trace
from profkit.names import middle_cut, visible
from profkit.readers.kineto import keys, metadata
from profkit.readers.kineto.assemble import TraceTables, assemble
from profkit.readers.kineto.capture_info import read_capture
from profkit.readers.kineto.categories import WITHOUT_WORK
from profkit.readers.kineto.flows import need_flows, read_correlation
from profkit.readers.kineto.main_thread import with_main_thread_named
from profkit.readers.kineto.own_work import without_own_work
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
from profkit.units import format_count

_EXECUTION_TRACE: Final = (
    "It seems to be an execution trace (torch.profiler.ExecutionTraceObserver)."
)
_OTHER_FORMATS: Final = {
    b'"op_schema"': _EXECUTION_TRACE,
    b'"ctrl_deps"': _EXECUTION_TRACE,
    b'"resourceSpans"': "It seems to be OpenTelemetry spans.",
    b'"$schema": "https://www.speedscope': "It seems to be a speedscope profile.",
}
_HINT: Final = "profkit reads what torch.profiler exports."
_TO_UTF_8: Final = (
    "Convert it to UTF-8: PowerShell writes UTF-16 where output is redirected to a file."
)
_KINETO_KEYS: Final = frozenset({keys.SCHEMA_VERSION, keys.DEVICES, keys.TRACE_NAME, keys.PROFKIT})
_MAX_CATEGORY: Final = 40


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
        text, chunks, part = _read_batches(place, limit, stages, processes_for(place), on_progress)

        # Counted before the batches are joined, which empties them.
        batches = part.batches.values()
        notes = LoadNotes(
            n_events=sum(batch.n_events for batch in batches),
            n_complete=sum(batch.n_complete for batch in batches),
            n_skipped=sum(batch.n_skipped for batch in batches),
            categories=part.interned.category_counts,
            uncompressed_bytes=chunks.n_bytes,
            truncated=chunks.truncated or not text.complete or bool(text.undecoded),
            n_unread_bytes=metadata.n_unread_bytes(text),
        )
        if not text.found_events or notes.n_events == notes.n_skipped > 0:
            raise _not_a_trace(place, text, chunks.n_bytes)

        with stages.stage("assemble"):
            header = metadata.header_of(text) or {}
            tables = assemble(part.batches, part.interned)
            if need_flows(tables.events):
                column = read_correlation(place, limit, tables.events, tables.start_ns)
                tables = replace(tables, events=replace(tables.events, correlation=column))
            if not _is_from_torch(header, tables, notes):
                raise _not_from_torch(place, tables, notes)
            trace = _build_trace(place, header, tables, notes)
        return replace(trace, notes=replace(trace.notes, stages_ns=stages.ns))


def _read_batches(
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
    # A worker died, or a batch had to be salvaged, which moves the boundaries of later ones.
    return _read_batches(place, limit, stages, 1, on_progress)


def _not_a_trace(place: Place, text: TraceText, n_bytes: int) -> NotATraceError:
    if not n_bytes:
        return NotATraceError(f"{place} is empty.", "Record it again; the program may have died.")
    if text.found_events:
        message = f"{place} has a list of events, but none of them is a trace event."
        return NotATraceError(message, _HINT)

    head = text.head[: 1 << 16]
    if b"\0" in (start := head[:8]) and start.strip(b"\0\xff\xfe")[:1] in (b"{", b"["):
        return NotATraceError(f"{place} is text in UTF-16 or UTF-32.", _TO_UTF_8)
    if not head.lstrip().startswith((b"{", b"[")):
        return NotATraceError(f"{place} is not JSON.", _HINT)

    hint = next((hint for mark, hint in _OTHER_FORMATS.items() if mark in head), _HINT)
    message = f"{place} is JSON, but not a profiler trace: it has no traceEvents."
    return NotATraceError(message, hint)


def _is_from_torch(header: metadata.Header, tables: TraceTables, notes: LoadNotes) -> bool:
    """Return whether torch's profiler writes such events or keys, or there are no events."""
    events = tables.events
    if not len(events) or len(tables.memory) or (events.category != Category.OTHER).any():
        return True
    has_kineto_category = any(text.lower() in WITHOUT_WORK for text in notes.categories)
    return has_kineto_category or not _KINETO_KEYS.isdisjoint(header)


def _not_from_torch(place: Place, tables: TraceTables, notes: LoadNotes) -> NotATraceError:
    categories = sorted(filter(None, notes.categories), key=lambda text: -notes.categories[text])
    listed = ", ".join(f"`{middle_cut(visible(text), _MAX_CATEGORY)}`" for text in categories[:3])
    n = len(tables.events)
    events = "its event is" if n == 1 else f"none of its {format_count(n)} events is"
    kinds = "no operator, call or kernel" if n == 1 else "an operator, a call or a kernel"
    suffix = f" (their categories: {listed})" if listed else " (they have no category)"
    return NotATraceError(
        f"{place} is a trace, but not of torch.profiler: {events} {kinds}{suffix}.",
        f"{_HINT} Open this file in ui.perfetto.dev.",
    )


def _build_trace(
    place: Place, header: metadata.Header, tables: TraceTables, notes: LoadNotes
) -> Trace:
    capture, invalid_metadata = read_capture(bytes(header.get(keys.PROFKIT, b"null")))
    rank, world_size = metadata.distributed(header)
    events = with_main_thread_named(without_own_work(tables.events, capture), capture)
    has_stacks = "python_function" in notes.categories or len(events.call_stack.rows) > 0

    return Trace(
        path=str(place),
        events=events,
        memory=tables.memory,
        base_ns=metadata.base_time_ns(header) + tables.start_ns,
        devices=metadata.devices(header),
        recorded_with=metadata.recorded_with(
            header, has_stacks=has_stacks, has_memory=len(tables.memory) > 0
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
