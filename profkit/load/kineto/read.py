"""Read a Kineto trace: text in chunks, events in batches, columns."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from profkit.errors import NotATraceError
from profkit.load.kineto import metadata
from profkit.load.kineto.columns import Columns
from profkit.load.kineto.cut import Text, cut, salvage
from profkit.load.kineto.schema import (
    BATCH,
    EVENT,
    EXACT_BATCH,
    EXACT_EVENT,
    NO_ARGS,
    Complete,
    ExactComplete,
    ExactInstant,
    Instant,
    Naming,
)
from profkit.load.stream import Chunks, open_plain
from profkit.model.events import MISSING
from profkit.model.trace import LoadNotes, Trace

_MANY_DIGITS: Final = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')
"""Absolute microseconds with decimals: more digits than a float holds."""
_FLOAT_HOLDS_DECIMALS_US: Final = 2**43
"""Up to here, 101 days, a float is nearer than half a nanosecond to three decimals."""

_OTHER_FORMATS: Final = {
    b'"nodes"': "It looks like an execution trace (torch.profiler.ExecutionTraceObserver).",
    b'"resourceSpans"': "It looks like OpenTelemetry spans.",
    b'"$schema": "https://www.speedscope': "It looks like a speedscope profile.",
}


def read_kineto(path: Path) -> Trace:
    """Read a trace.

    Args:
        path: A Kineto trace or an autograd profiler's array, gzipped or not.

    Raises:
        LoadError: It cannot be read, or is no trace.
    """
    text = Text()
    reader = _Reader(text)
    with open_plain(path) as stream, _without_garbage_collection():
        chunks = Chunks(stream)
        for batch in cut(chunks, text):
            reader.add(batch)
        header = metadata.header_of(text)
        if not text.found_events or reader.n_events == reader.n_skipped > 0:
            raise _not_a_trace(path, text, chunks.n_bytes)
        truncated = chunks.truncated or not text.complete or bool(text.rest)
        return _trace(path, header or {}, reader, chunks.n_bytes, truncated=truncated)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of structs that nothing can hold in a cycle would be searched again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Reader:
    """Batches of text to columns.

    Attributes:
        columns: The columns so far.
        n_events: Entries of ``traceEvents`` so far.
        n_skipped: Those among them that are no events.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._exact = False
        self.columns = Columns()
        self.n_events = 0
        self.n_skipped = 0

    def add(self, batch: bytes) -> None:
        """Add a batch of whole events: a JSON list."""
        events = self._decoded(batch)
        if not self._exact and _needs_digits(events) and _MANY_DIGITS.search(batch):
            self._exact = True
            events = self._decoded(batch)
        self._sort(events)

    def _decoded(self, batch: bytes) -> list[Any]:
        """The events of a batch; None stands for what is no event."""
        decoder = EXACT_BATCH if self._exact else BATCH
        try:
            found: list[Any] = decoder.decode(batch)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._salvaged(batch)
        return found

    def _salvaged(self, batch: bytes) -> list[Any]:
        """The events of a batch that is not as it should be."""
        salvaged = salvage(batch)
        if salvaged.ended:
            self._text.complete = True
            self._text.tail += salvaged.rest
        else:
            self._text.rest = salvaged.rest
        return [self._converted(event) for event in salvaged.events]

    def _converted(self, event: Any) -> Any:  # noqa: ANN401  (whatever the file has there)
        kind = EXACT_EVENT if self._exact else EVENT
        try:
            return msgspec.convert(event, kind, strict=False)
        except msgspec.ValidationError:
            return _forgiven(event, kind)

    def _sort(self, events: list[Any]) -> None:
        """Hand each event to the columns that it belongs to."""
        first = self.n_events
        kinds = list(map(type, events))
        self.n_events += len(events)
        self.n_skipped += kinds.count(type(None))
        at = [i for i, kind in enumerate(kinds) if kind is Complete or kind is ExactComplete]
        self.columns.add_complete([events[i] for i in at], first, at)
        if Instant in kinds or ExactInstant in kinds:
            at = [i for i, event in enumerate(events) if _is_memory(event)]
            self.columns.add_memory([events[i] for i in at], first, at)
        if Naming in kinds:
            for event in events:
                if type(event) is Naming:
                    self._name(event)

    def _name(self, event: Naming) -> None:
        name = str(event.args.name) if event.args else ""
        if event.name == "process_name":
            self.columns.lanes.name_process(event.pid, name)
        elif event.name == "thread_name":
            self.columns.lanes.name_thread(event.pid, event.tid, name)


def _needs_digits(events: list[Any]) -> bool:
    """Whether times are so large that a float does not hold the decimals they may have."""
    timed = next((e for e in events if isinstance(e, Complete)), None)
    return timed is not None and timed.ts >= _FLOAT_HOLDS_DECIMALS_US


def _is_memory(event: Any) -> bool:  # noqa: ANN401  (an event of any kind)
    return (
        isinstance(event, (Instant, ExactInstant))
        and event.name == "[memory]"
        and (event.args or NO_ARGS).memory_bytes != MISSING
    )


def _forgiven(event: Any, kind: Any) -> Any:  # noqa: ANN401  (whatever the file has there)
    """An event of which some fields are not what they should be, without these; else None."""
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        return None
    args = event.get("args")
    if isinstance(args, dict):
        kept = {}
        for key, value in args.items():
            try:
                msgspec.convert({"ph": "X", "ts": 0, "args": {key: value}}, EVENT, strict=False)
            except msgspec.ValidationError:
                continue
            kept[key] = value
        event = {**event, "args": kept}
    else:
        event = {key: value for key, value in event.items() if key != "args"}
    try:
        return msgspec.convert(event, kind, strict=False)
    except msgspec.ValidationError:
        return None


def _not_a_trace(path: Path, text: Text, n_bytes: int) -> NotATraceError:
    if not n_bytes:
        return NotATraceError(f"{path} is empty.", "Record it again; the program may have died.")
    if text.found_events:
        message = f"{path} has a list of events, but none of them is a trace event."
        return NotATraceError(message, "profkit reads what torch.profiler exports.")
    beginning = text.head[: 1 << 16]
    if not beginning.lstrip().startswith((b"{", b"[")):
        return NotATraceError(f"{path} is not JSON.", "profkit reads what torch.profiler exports.")
    guess = next((said for mark, said in _OTHER_FORMATS.items() if mark in beginning), "")
    message = f"{path} is JSON, but no profiler trace: it has no traceEvents."
    return NotATraceError(message, guess or "profkit reads what torch.profiler exports.")


def _trace(
    path: Path, header: metadata.Header, reader: _Reader, n_bytes: int, *, truncated: bool
) -> Trace:
    events, memory, start_ns = reader.columns.tables()
    capture = metadata.capture(header)
    rank, world_size = metadata.distributed(header)
    return Trace(
        path=str(path),
        events=events,
        memory=memory,
        base_ns=metadata.base_time_ns(header) + start_ns,
        devices=metadata.devices(header),
        recorded_with=metadata.recorded_with(
            header,
            has_stacks="python_function" in reader.columns.categories
            or len(events.call_stack.rows) > 0,
            has_memory=len(memory) > 0,
        ),
        torch=capture.torch if capture else None,
        rank=rank,
        world_size=world_size,
        host=metadata.host(header),
        versions=metadata.versions(header),
        capture=capture,
        notes=LoadNotes(
            n_events=reader.n_events,
            n_complete=reader.columns.n_complete,
            n_skipped=reader.n_skipped,
            categories=reader.columns.categories,
            uncompressed_bytes=n_bytes,
            messages=metadata.messages(header),
            truncated=truncated,
        ),
    )
