"""A trace's JSON text, cut at event boundaries while it streams by.

What comes before the events and what comes after them is small and is kept; the events themselves
are handed on in batches of a few MiB, so that memory stays bounded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from profkit.errors import TooLargeError
from profkit.units import format_bytes

_EVENTS_BEGIN: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS: Final = re.compile(
    rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|bp|args)"\s*:)'
)
_BETWEEN_TEXT: Final = re.compile(_BETWEEN_EVENTS.pattern.decode())
_AFTER_EVENTS: Final = re.compile(rb"\}(?=\s*\])")
_BAD_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LONGEST_HEAD: Final = 64 << 20
LONGEST_EVENT_BYTES: Final = 256 << 20
"""A string of 100 MB is read; a text without any end is not gathered in memory."""
_LONGEST_BOUNDARY: Final = 4 << 10
"""White space between two events that is longer than this is looked at twice, or not found."""
_LONGEST_BROKEN: Final = 8 << 20
"""An event that does not end within so much text is broken, and what follows it is read."""
_FIRST_LOOK_BACK: Final = 64 << 10
_END_CANDIDATES: Final = 16

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is no JSON, is not UTF-8, or nests too deep."""
_DECODER: Final = json.JSONDecoder(strict=False)
_EXACT_DECODER: Final = json.JSONDecoder(strict=False, parse_float=str)
"""It leaves numbers with decimals as they are written."""


@dataclass
class Text:
    """The parts of a trace's text.

    Attributes:
        head: What precedes the events, to the opening bracket; ``b"["`` for a bare array.
        tail: What follows the closing bracket.
        found_events: There is a list of events at all.
        complete: Its closing bracket was there.
        bare: The file is the list itself.
        rest: What the reader of a batch could not use of its end.
    """

    head: bytes = b""
    tail: bytearray = field(default_factory=bytearray)
    found_events: bool = False
    complete: bool = False
    bare: bool = False
    rest: bytes = b""

    def has_ended(self) -> bool:
        """Whether the closing bracket was met, by whoever came to it."""
        return self.complete


def cut(chunks: Iterable[bytes], text: Text) -> Iterator[bytes]:
    """Yield batches of whole events, each a JSON list.

    Where an event holds a list of objects that look like events, a batch may end within it. Whoever
    reads the batches then puts what is left of one into ``text.rest``, and it precedes the next.

    Args:
        chunks: The text, in pieces of any length.
        text: Filled in on the way.
    """
    pieces = iter(chunks)
    pending = _find_events(pieces, text)
    if not text.found_events:
        return
    for chunk in pieces:
        if text.has_ended():
            text.tail += chunk
            continue
        looked = max(0, len(pending) - _LONGEST_BOUNDARY)
        pending += chunk
        boundary = _last_boundary(pending, looked)
        if boundary is None:
            if len(pending) > LONGEST_EVENT_BYTES:
                raise TooLargeError(
                    f"An event of the trace has more than {format_bytes(LONGEST_EVENT_BYTES)}.",
                    "No event of a profiler is so long; the file may be something else.",
                )
            continue
        yield _listed(pending, boundary.start() + 1)
        if text.has_ended():
            text.tail += pending[boundary.start() + 1 :]
            pending = bytearray()
        elif text.rest:
            pending = bytearray(text.rest) + pending[boundary.start() + 1 :]
            text.rest = b""
        else:
            del pending[: boundary.end()]
    if not text.has_ended():
        yield from _last_batches(bytes(pending), text)


def _find_events(pieces: Iterator[bytes], text: Text) -> bytearray:
    """Read up to the opening bracket of the events; what follows it is returned."""
    pending = bytearray()
    for chunk in pieces:
        pending += chunk
        stripped = bytes(pending[:64]).lstrip(b"\xef\xbb\xbf \t\r\n")
        if stripped.startswith(b"["):
            text.found_events, text.bare, text.head = True, True, b"["
            return pending[pending.index(b"[") + 1 :]
        begin = _EVENTS_BEGIN.search(pending)
        if begin is not None:
            text.found_events, text.head = True, bytes(pending[: begin.end()])
            return pending[begin.end() :]
        if len(pending) > _LONGEST_HEAD:
            break
    text.head = bytes(pending)
    return bytearray()


def _last_boundary(pending: bytearray, looked: int) -> re.Match[bytes] | None:
    """The last place between two events, looked for from the end.

    Args:
        pending: The text.
        looked: Where earlier looks, which found none, began: so that a long event is not searched
            again with every chunk.
    """
    look_back = _FIRST_LOOK_BACK
    while True:
        begin = max(looked, len(pending) - look_back)
        last = None
        for last in _BETWEEN_EVENTS.finditer(pending, begin):  # noqa: B007  (the last one is wanted)
            pass
        if last is not None or begin == looked:
            return last
        look_back *= 8


def _last_batches(pending: bytes, text: Text) -> Iterator[bytes]:
    """The last events of the text: those before the closing bracket, if it can be told at once."""
    if pending.lstrip().startswith(b"]"):
        text.complete = True
        text.tail += pending.lstrip()[1:]
        return
    ends = [m.end() for m in _AFTER_EVENTS.finditer(pending)]
    # The first that fits: a list among the keys that follow ends like the list of events does, and
    # from within an event the rest of the text closes more than it opens.
    for end in ends[-_END_CANDIDATES:]:
        after = pending[end:].lstrip()[1:]
        if _is_tail(after, bare=text.bare):
            text.complete = True
            text.tail += after
            yield _listed(pending, end)
            return
    yield _listed(pending, len(pending))


def _listed(pending: bytes | bytearray, end: int) -> bytes:
    """The text up to some place as a JSON list; copied once, since batches are large."""
    return b"".join((b"[", memoryview(pending)[:end], b"]"))


def _is_tail(after: bytes, *, bare: bool) -> bool:
    """Whether this text may follow the list of events."""
    after = after.strip()
    if bare or after in (b"", b"}"):
        return after == b"" if bare else after == b"}"
    try:
        rest = msgspec.json.decode(b"{" + after.lstrip(b","), type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return False
    return bool(rest)


@dataclass(frozen=True)
class Salvaged:
    """What could be read of a batch that cannot be decoded in one go.

    Attributes:
        events: Its events as dictionaries; None stands for text that is no event.
        texts: The text of each of them, its escapes repaired; empty for what is no event.
        rest: The text after the last whole event, to be continued by the next batch.
        ended: The list's closing bracket was met; ``rest`` is what follows it.
    """

    events: list[Any]
    texts: list[str]
    rest: bytes
    ended: bool


def salvage(batch: bytes, *, exact: bool = False) -> Salvaged:
    """Read a batch (a JSON list that may end too early) event by event: slower, and forgiving.

    Args:
        batch: The text.
        exact: Numbers with decimals shall be strings, and so keep their digits.

    Invalid escapes (Windows paths that were written unescaped) are taken literally, bytes that
    are not UTF-8 are replaced, control characters within strings are let through, and an event
    that is broken is passed over.
    """
    decoder = _EXACT_DECODER if exact else _DECODER
    text = _BAD_ESCAPE.sub(r"\\\\", batch[1:-1].decode("utf-8", "replace"))
    events: list[Any] = []
    texts: list[str] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text):
            return Salvaged(events, texts, b"", ended=False)
        if text[at] == "]":
            return Salvaged(events, texts, text[at + 1 :].encode("utf-8", "replace"), ended=True)
        began = at
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            following = _BETWEEN_TEXT.search(text, at)
            if _ran_out(error, text, at) or following is None:
                return Salvaged(events, texts, text[at:].encode("utf-8", "replace"), ended=False)
            event, at = None, following.end()
        events.append(event)
        texts.append(text[began:at] if event is not None else "")


def _ran_out(error: Exception, text: str, at: int) -> bool:
    """Whether an event cannot be read because the text ends within it."""
    if not isinstance(error, json.JSONDecodeError) or len(text) - at > _LONGEST_BROKEN:
        return False
    return error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
