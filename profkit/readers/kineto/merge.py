"""Joins the traces of several ranks to one, on one clock and file by file.

Viewers tell processes apart by their id, and arrows by theirs, so each rank gets ids of its own.
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
from profkit.readers.kineto import metadata
from profkit.readers.kineto.append import NO_OWN, OwnPositions, RecordedText
from profkit.readers.kineto.split import UNREADABLE, TraceText, split_batches
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_PIDS: Final = 1_000
"""Processes of a rank: its host, its devices, and the workers of its loaders."""
_ARROWS: Final = 1 << 36
"""Arrows of a rank; with a thousand ranks their ids are exact in JavaScript."""
_EVENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OF_PROCESSES: Final = (b'"process_name"', b'"process_sort_index"', b'"process_labels"')

Event = dict[str, msgspec.Raw]


@dataclass(frozen=True)
class RankFile:
    """The trace of a rank.

    Attributes:
        name: What its processes are called, such as ``rank 3 · node1``.
        corrected: Moments of its clock on the common one, both in nanoseconds since 1970.
        added: Further events, each a JSON object, given the process id that is free for them.
        limit_bytes: Maximum decompressed size; None for the default.
        own: Returns which events are those of profkit itself.
    """

    place: Place
    name: str
    corrected: Callable[[int], int]
    added: Callable[[int], Iterable[bytes]] | None = None
    limit_bytes: int | None = None
    own: Callable[[], OwnPositions] | None = None


def merged(files: Iterable[RankFile], start_ns: int) -> Iterator[bytes]:
    """Yield the text of one trace with the events of all files, in pieces of a few MiB.

    Args:
        start_ns: What times are relative to, in nanoseconds since 1970 on the common clock.

    Raises:
        NotATraceError: A file has no list of events.
        LoadError: One cannot be read.
    """
    yield b'{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":%d,' % start_ns
    yield b'"traceEvents":[\n'
    before = b""
    for number, file in enumerate(files):
        for piece in _events_of(file, number, start_ns):
            if piece:
                yield before + piece
                before = b",\n"
    yield b"\n]}\n"


def _events_of(file: RankFile, number: int, start_ns: int) -> Iterator[bytes]:
    """The events of a file, moved and with ids of their own."""
    limit = default_limit_bytes(file.place) if file.limit_bytes is None else file.limit_bytes
    own = NO_OWN if file.own is None else file.own()
    text, recorded, moved = TraceText(), RecordedText(own), None
    with open_plain(file.place) as stream:
        for batch in split_batches(Chunks(stream, limit), text):
            if moved is None:
                moved = _Moved(file, number, start_ns, _base_ns(file.place, text, limit))
            written = recorded.events(batch, text)
            yield b",\n".join(filter(None, map(moved.event, _EVENTS.decode(b"[" + written + b"]"))))
    if not text.found_events:
        message = f"{file.place} has no traceEvents."
        raise NotATraceError(message, "profkit reads what torch.profiler exports.")
    if moved is not None:
        yield b",\n".join(moved.names())
    if file.added is not None:
        yield b",\n".join(file.added((number + 1) * _PIDS))


def _base_ns(place: Place, text: TraceText, limit_bytes: int) -> int:
    """The base of the times in a file: above its events, or else below them."""
    if b'"baseTimeNanoseconds"' not in text.head:
        text = TraceText()
        with open_plain(place) as stream:
            for _ in split_batches(Chunks(stream, limit_bytes), text):
                pass
    return metadata.base_time_ns(metadata.header_of(text) or {})


@dataclass
class _Process:
    """A process of a rank.

    Attributes:
        pid: Its new id.
        label: What it is, such as ``GPU 0``; empty for the host.
        order: Its place in a list, as recorded.
        is_used: Whether it has events: kineto names devices that have none.
        threads: The events that name and sort its threads.
    """

    pid: int
    label: str = ""
    order: int = sys.maxsize
    is_used: bool = False
    threads: list[bytes] = field(default_factory=list)


@dataclass
class _Moved:
    """Moves the events of a rank to the common clock; ``processes`` by their id as written."""

    file: RankFile
    number: int
    start_ns: int
    base_ns: int
    processes: dict[bytes, _Process] = field(default_factory=dict)

    def event(self, raw: msgspec.Raw) -> bytes:
        """An event with its new time and ids; nothing for what :meth:`names` has at the end."""
        try:
            event = _EVENT.decode(raw)
        except UNREADABLE:
            return b""
        process = self._process(event)
        at_ns, length_ns = _ns(event.get("ts")), _ns(event.get("dur"))
        if at_ns is not None:
            start_ns = self._moved_ns(at_ns)
            event["ts"] = _microseconds(start_ns)
            if length_ns is not None:
                event["dur"] = _microseconds(self._moved_ns(at_ns + length_ns) - start_ns)
        if "id" in event:
            event["id"] = msgspec.Raw(str(self._arrow(bytes(event["id"]))).encode())
        is_metadata = bytes(event.get("ph", b"")) == b'"M"'
        if not is_metadata:
            process.is_used = True
        elif not self._names_process(event, process):
            process.threads.append(msgspec.json.encode(event))
        return b"" if is_metadata else msgspec.json.encode(event)

    def _process(self, event: Event) -> _Process:
        written = bytes(event.get("pid", b"0"))
        found = self.processes.get(written)
        if found is None:
            free = (self.number + 1) * _PIDS + 1 + min(len(self.processes), _PIDS - 2)
            found = self.processes[written] = _Process(free)
            if written[:1] == b'"':  # kineto's Spans and Traces
                found.label = written.decode("utf-8", "replace").strip('"')
        event["pid"] = msgspec.Raw(str(found.pid).encode())
        return found

    def _names_process(self, event: Event, process: _Process) -> bool:
        """Note what an event says of its process; whether it is about that."""
        name, args = bytes(event.get("name", b"")), event.get("args")
        try:
            given = _EVENT.decode(args) if args is not None else {}
        except UNREADABLE:
            given = {}
        index, label = bytes(given.get("sort_index", b"")), bytes(given.get("labels", b""))
        if name == b'"process_labels"' and label not in {b"", b'""', b'"CPU"'}:
            process.label = label.decode("utf-8", "replace").strip('"')
        if name == b'"process_sort_index"' and index.isdigit():
            process.order = int(index)
        return name in _OF_PROCESSES

    def names(self) -> Iterator[bytes]:
        """Events that name the processes and their threads, and sort those of a rank together."""
        used = [each for each in self.processes.values() if each.is_used]
        for place, each in enumerate(sorted(used, key=lambda each: (each.order, each.pid))):
            name = " · ".join(filter(None, (self.file.name, each.label)))
            yield from process_events(each.pid, name, (self.number + 1) * _PIDS + 1 + place)
            yield from each.threads

    def _moved_ns(self, at_ns: int) -> int:
        return self.file.corrected(at_ns + self.base_ns) - self.start_ns

    def _arrow(self, written: bytes) -> int:
        own = int(written) if written.isdigit() else zlib.crc32(written)
        return self.number * _ARROWS + own % _ARROWS


def process_events(pid: int, name: str, sort_index: int) -> Iterator[bytes]:
    """Events that name a process and sort it."""
    for kind, args in (
        ("process_name", {"name": name}),
        ("process_sort_index", {"sort_index": sort_index}),
    ):
        yield msgspec.json.encode({"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": args})


def _ns(written: msgspec.Raw | None) -> int | None:
    """Microseconds as written in nanoseconds, None where they are no number."""
    if written is None:
        return None
    text = bytes(written).strip(b'"').decode("ascii", "replace")
    whole, _, decimals = text.partition(".")
    if whole.isdigit() and (decimals.isdigit() or not decimals):
        return int(whole) * 1000 + int(f"{decimals[:3]:0<3}")
    try:
        return int(Decimal(text) * 1000)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _microseconds(ns: int) -> msgspec.Raw:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())
