"""Reads a Kineto trace: text in chunks, events in batches, batches as columns."""

from dataclasses import replace
from typing import Final

from profkit.errors import NotATraceError
from profkit.model.events import Category
from profkit.model.trace import LoadNotes, Trace
from profkit.names import middle_cut, visible
from profkit.readers.kineto import metadata
from profkit.readers.kineto.assemble import TraceTables, assemble
from profkit.readers.kineto.capture_info import read_capture
from profkit.readers.kineto.flows import flow_correlation, need_flows
from profkit.readers.kineto.interning import WITHOUT_WORK
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
_KINETO_KEYS: Final = frozenset({"schemaVersion", "deviceProperties", "traceName", "profkit"})
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
        text, chunks, part = _read(place, limit, stages, processes_for(place), on_progress)
        batches = part.batches.values()
        notes = LoadNotes(
            n_events=sum(batch.n_events for batch in batches),
            n_complete=sum(batch.n_complete for batch in batches),
            n_skipped=sum(batch.n_skipped for batch in batches),
            categories=part.interned.category_counts,
            uncompressed_bytes=chunks.n_bytes,
            truncated=chunks.truncated or not text.complete or bool(text.rest),
            n_unread_bytes=metadata.n_unread_bytes(text),
        )
        if not text.found_events or notes.n_events == notes.n_skipped > 0:
            raise _not_a_trace(place, text, chunks.n_bytes)
        with stages.stage("assemble"):
            header = metadata.header_of(text) or {}
            tables = assemble(part.batches, part.interned)
            if need_flows(tables.events):
                column = flow_correlation(place, limit, tables.events, tables.start_ns)
                tables = replace(tables, events=replace(tables.events, correlation=column))
            if _is_of_another_program(header, tables, notes):
                raise _of_another_program(place, tables, notes)
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
    if b"\0" in (start := beginning[:8]) and start.strip(b"\0\xff\xfe")[:1] in (b"{", b"["):
        return NotATraceError(f"{place} is text in UTF-16 or UTF-32.", _TO_UTF_8)
    if not beginning.lstrip().startswith((b"{", b"[")):
        return NotATraceError(f"{place} is not JSON.", _HINT)
    guess = next((format_ for mark, format_ in _OTHER_FORMATS.items() if mark in beginning), _HINT)
    message = f"{place} is JSON, but not a profiler trace: it has no traceEvents."
    return NotATraceError(message, guess)


def _is_of_another_program(header: metadata.Header, tables: TraceTables, notes: LoadNotes) -> bool:
    """Whether not one event is of a kind that torch's profiler writes, nor a key beside them."""
    events = tables.events
    if not len(events) or len(tables.memory) or (events.category != Category.OTHER).any():
        return False
    by_kineto = any(text.lower() in WITHOUT_WORK for text in notes.categories)
    return not by_kineto and _KINETO_KEYS.isdisjoint(header)


def _of_another_program(place: Place, tables: TraceTables, notes: LoadNotes) -> NotATraceError:
    written = sorted(filter(None, notes.categories), key=lambda text: -notes.categories[text])
    named = ", ".join(f"`{middle_cut(visible(text), _MAX_CATEGORY)}`" for text in written[:3])
    n = len(tables.events)
    events = "its event is" if n == 1 else f"none of its {format_count(n)} events is"
    what = "no operator, call or kernel" if n == 1 else "an operator, a call or a kernel"
    kinds = f" (their categories: {named})" if named else " (they have no category)"
    return NotATraceError(
        f"{place} is a trace, but not of torch.profiler: {events} {what}{kinds}.",
        f"{_HINT} Open this file in ui.perfetto.dev.",
    )


def _trace(place: Place, header: metadata.Header, tables: TraceTables, notes: LoadNotes) -> Trace:
    capture, invalid_metadata = read_capture(bytes(header.get("profkit", b"null")))
    rank, world_size = metadata.distributed(header)
    return Trace(
        path=str(place),
        events=with_main_thread_named(without_own_work(tables.events, capture), capture),
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
