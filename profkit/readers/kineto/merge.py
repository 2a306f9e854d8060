"""Joins the traces of several ranks to one, on one clock and file by file.

Viewers tell processes and arrows apart by their ids, so the ids of each rank are made unique.
"""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from profkit.dataclass import dataclass
from profkit.errors import NotATraceError
from profkit.readers.kineto import keys, metadata
from profkit.readers.kineto.append import NO_OWN, OwnPositions, RecordedText
from profkit.readers.kineto.split import UNREADABLE, TraceText, split_batches
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_PIDS: Final = 1_000
"""Process ids per rank: for its host, its devices, and the workers of its loaders."""
_ARROWS: Final = 1 << 36
"""Arrow ids per rank. With a thousand ranks they are still exact in JavaScript."""
_EVENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PROCESS_LABELS: Final = keys.quote(keys.PROCESS_LABELS)
_PROCESS_ORDER: Final = keys.quote(keys.PROCESS_ORDER)
_PROCESS_METADATA: Final = (keys.quote(keys.PROCESS_NAME), _PROCESS_ORDER, _PROCESS_LABELS)

Event = dict[str, msgspec.Raw]


@dataclass(frozen=True)
class RankFile:
    """The trace of a rank.

    Attributes:
        place: The file.
        name: The name of its processes, such as ``rank 3 · node1``.
        corrected: Converts a moment of its clock to the common clock, both in nanoseconds since
            1970.
        added: Given a process id that is free, returns events to add, each a JSON object.
        limit_bytes: Maximum decompressed size; None for the default.
        own: Returns the positions of profkit's own events.
    """

    place: Place
    name: str
    corrected: Callable[[int], int]
    added: Callable[[int], Iterable[bytes]] | None = None
    limit_bytes: int | None = None
    own: Callable[[], OwnPositions] | None = None


def merge_traces(files: Iterable[RankFile], start_ns: int) -> Iterator[bytes]:
    """Yield the text of one trace with the events of all files, in pieces of a few MiB.

    Args:
        files: The traces, in the order of their ranks.
        start_ns: The base of all times, in nanoseconds since 1970 on the common clock.

    Raises:
        NotATraceError: A file has no list of events.
        LoadError: One cannot be read.
    """
    head = {keys.SCHEMA_VERSION: 1, keys.TIME_UNIT: "ms", keys.BASE_TIME: start_ns}
    yield msgspec.json.encode(head)[:-1] + b",%b:[\n" % keys.quote(keys.EVENTS)
    separator = b""
    for number, file in enumerate(files):
        for piece in _move_events(file, number, start_ns):
            if piece:
                yield separator + piece
                separator = b",\n"
    yield b"\n]}\n"


def _move_events(file: RankFile, number: int, start_ns: int) -> Iterator[bytes]:
    """Yield the events of a file on the common clock, with unique ids."""
    limit = default_limit_bytes(file.place) if file.limit_bytes is None else file.limit_bytes
    recorded = RecordedText(NO_OWN if file.own is None else file.own())
    text, mover = TraceText(), None

    with open_plain(file.place) as stream:
        for batch in split_batches(Chunks(stream, limit), text):
            if mover is None:
                mover = _Mover(file, number, start_ns, _read_base_ns(file.place, text, limit))
            written = recorded.take_events(batch, text)
            yield b",\n".join(filter(None, map(mover.move, _EVENTS.decode(b"[" + written + b"]"))))
    if not text.found_events:
        message = f"{file.place} has no traceEvents."
        raise NotATraceError(message, "profkit reads what torch.profiler exports.")

    if mover is not None:
        yield b",\n".join(mover.names())
    if file.added is not None:
        yield b",\n".join(file.added((number + 1) * _PIDS))


def _read_base_ns(place: Place, text: TraceText, limit_bytes: int) -> int:
    """Read the base of the times in a file: above its events, or else below them."""
    if keys.quote(keys.BASE_TIME) not in text.head:
        text = TraceText()
        with open_plain(place) as stream:
            for _ in split_batches(Chunks(stream, limit_bytes), text):
                pass
    return metadata.base_time_ns(metadata.header_of(text) or {})


@dataclass
class _Process:
    """A process of a rank.

    Attributes:
        pid: The new id.
        label: The device, such as ``GPU 0``; empty for the host.
        order: The recorded sort index.
        is_used: Whether the process has events: kineto also names devices without any.
        threads: The events that name and sort the threads.
    """

    pid: int
    label: str = ""
    order: int = sys.maxsize
    is_used: bool = False
    threads: list[bytes] = field(default_factory=list)


@dataclass
class _Mover:
    """Moves the events of a rank to the common clock; ``processes`` by their id as written."""

    file: RankFile
    number: int
    start_ns: int
    base_ns: int
    processes: dict[bytes, _Process] = field(default_factory=dict)

    def move(self, raw: msgspec.Raw) -> bytes:
        """Return an event with its new time and ids; empty for metadata, see :meth:`names`."""
        try:
            event = _EVENT.decode(raw)
        except UNREADABLE:
            return b""
        process = self._assign_process(event)

        # Start and end are moved one by one, since the clocks may drift apart in between.
        at_ns, length_ns = _to_ns(event.get("ts")), _to_ns(event.get("dur"))
        if at_ns is not None:
            start_ns = self._moved_ns(at_ns)
            event["ts"] = _to_microseconds(start_ns)
            if length_ns is not None:
                event["dur"] = _to_microseconds(self._moved_ns(at_ns + length_ns) - start_ns)
        if "id" in event:
            event["id"] = msgspec.Raw(str(self._arrow_id(bytes(event["id"]))).encode())

        is_metadata = bytes(event.get("ph", b"")) == b'"M"'
        if not is_metadata:
            process.is_used = True
        elif not self._read_metadata(event, process):
            process.threads.append(msgspec.json.encode(event))
        return b"" if is_metadata else msgspec.json.encode(event)

    def _assign_process(self, event: Event) -> _Process:
        """Give an event the new id of its process."""
        written = bytes(event.get("pid", b"0"))
        process = self.processes.get(written)
        if process is None:
            # Processes beyond the range share its last id, since the next one is another rank's.
            free_pid = (self.number + 1) * _PIDS + 1 + min(len(self.processes), _PIDS - 2)
            process = self.processes[written] = _Process(free_pid)
            if written[:1] == b'"':  # kineto's Spans and Traces
                process.label = written.decode("utf-8", "replace").strip('"')
        event["pid"] = msgspec.Raw(str(process.pid).encode())
        return process

    def _read_metadata(self, event: Event, process: _Process) -> bool:
        """Read label and sort index of a process; False for metadata of a thread."""
        name, args = bytes(event.get("name", b"")), event.get("args")
        try:
            values = _EVENT.decode(args) if args is not None else {}
        except UNREADABLE:
            values = {}

        index, label = bytes(values.get("sort_index", b"")), bytes(values.get("labels", b""))
        if name == _PROCESS_LABELS and label not in {b"", b'""', b'"CPU"'}:
            process.label = label.decode("utf-8", "replace").strip('"')
        if name == _PROCESS_ORDER and index.isdigit():
            process.order = int(index)
        return name in _PROCESS_METADATA

    def names(self) -> Iterator[bytes]:
        """Yield events that name the processes and their threads, and sort a rank's together."""
        used = [process for process in self.processes.values() if process.is_used]
        used.sort(key=lambda process: (process.order, process.pid))
        for sort_index, process in enumerate(used, (self.number + 1) * _PIDS + 1):
            name = " · ".join(filter(None, (self.file.name, process.label)))
            yield from process_events(process.pid, name, sort_index)
            yield from process.threads

    def _moved_ns(self, at_ns: int) -> int:
        return self.file.corrected(at_ns + self.base_ns) - self.start_ns

    def _arrow_id(self, written: bytes) -> int:
        number = int(written) if written.isdigit() else zlib.crc32(written)
        return self.number * _ARROWS + number % _ARROWS


def process_events(pid: int, name: str, sort_index: int) -> Iterator[bytes]:
    """Yield events that name a process and sort it."""
    for kind, args in (
        (keys.PROCESS_NAME, {"name": name}),
        (keys.PROCESS_ORDER, {"sort_index": sort_index}),
    ):
        yield msgspec.json.encode({"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": args})


def _to_ns(written: msgspec.Raw | None) -> int | None:
    """Convert microseconds, as they are written, to nanoseconds; None if they are not a number."""
    if written is None:
        return None
    text = bytes(written).strip(b'"').decode("ascii", "replace")

    # Nearly all times are plain digits, which are exact at any length and need no Decimal.
    whole, _, decimals = text.partition(".")
    if whole.isdigit() and (decimals.isdigit() or not decimals):
        return int(whole) * 1000 + int(f"{decimals[:3]:0<3}")
    try:
        return int(Decimal(text) * 1000)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _to_microseconds(ns: int) -> msgspec.Raw:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())
