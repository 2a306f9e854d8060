"""Splits a trace's JSON text at event boundaries while it is read.

The text before and after the events is small and is stored; the events are yielded in batches of a
few MiB, so that memory stays bounded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import islice
from typing import Any, Final

import msgspec

from profkit.dataclass import dataclass
from profkit.errors import TooLargeError
from profkit.patterns import regex
from profkit.readers.kineto import keys
from profkit.units import format_bytes

BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that editors on Windows write before UTF-8."""
_EVENTS_BEGIN: Final = regex(keys.quote(keys.EVENTS) + rb"\s*:\s*\[")
_BOUNDARY: Final = regex(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_BOUNDARY_TEXT: Final = regex(_BOUNDARY.pattern.decode())
_EVENTS_END: Final = regex(rb"\}(?=\s*\])")
_BAD_ESCAPE_BYTES: Final = regex(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BAD_ESCAPE: Final = regex(_BAD_ESCAPE_BYTES.pattern.decode())
_MAX_HEAD_BYTES: Final = 64 << 20
MAX_EVENT_BYTES: Final = 256 << 20
"""A string of 100 MB is read. Text without an event boundary is not accumulated without end."""
_MAX_BOUNDARY_BYTES: Final = 4 << 10
"""A boundary with more white space than this is missed if it spans two chunks."""
_MAX_BROKEN_CHARS: Final = 8 << 20
"""An event that does not end within this length is broken; reading continues after it."""
_MIN_PASSED_CHARS: Final = 64 << 10
_FIRST_SEARCH_BYTES: Final = 8 << 10
_MAX_CANDIDATES: Final = 16
"""Places in the text that are tried in turn as the begin or the end of the list of events."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised when decoding text that is not JSON, is not UTF-8, or is nested too deeply."""
_DECODER: Final = json.JSONDecoder(strict=False)
_EXACT_DECODER: Final = json.JSONDecoder(strict=False, parse_float=str)
"""Returns numbers with decimals as strings."""


@dataclass
class TraceText:
    """The parts of a trace's text around its events.

    Attributes:
        head: The text before the events, up to the opening bracket; ``b"["`` for a bare array.
        tail: The text after the closing bracket.
        found_events: Whether there is a list of events.
        complete: Whether its closing bracket was found.
        bare: Whether the file is only the list.
        undecoded: The end of a batch that its reader could not decode yet.
    """

    head: bytes = b""
    tail: bytearray = field(default_factory=bytearray)
    found_events: bool = False
    complete: bool = False
    bare: bool = False
    undecoded: bytes = b""

    def has_ended(self) -> bool:
        """Return whether the closing bracket was found, here or by the reader of a batch."""
        return self.complete


def split_batches(chunks: Iterable[bytes], text: TraceText) -> Iterator[bytes]:
    """Yield batches of whole events, each a JSON list.

    Where an event contains a list of objects that resemble events, a batch may end inside it. The
    reader of the batch then stores the end in ``text.undecoded``, and the next batch begins with
    it.

    Args:
        chunks: The text, in chunks of any length.
        text: Filled in while reading.

    Raises:
        TooLargeError: There is no event boundary within :data:`MAX_EVENT_BYTES`.
    """
    remaining = iter(chunks)
    pending = _find_events(remaining, text)
    if not text.found_events:
        return

    for chunk in remaining:
        if text.has_ended():
            text.tail += chunk
            continue

        searched = max(0, len(pending) - _MAX_BOUNDARY_BYTES)
        pending += chunk
        boundary = _find_last_boundary(pending, searched)
        if boundary is None:
            if len(pending) > MAX_EVENT_BYTES:
                raise TooLargeError(
                    f"An event of the trace is larger than {format_bytes(MAX_EVENT_BYTES)}.",
                    "Profilers write no events of this size; the file may be of another kind.",
                )
            continue

        # The reader of the batch decides how the text goes on, see above.
        yield _as_list(pending, boundary.start() + 1)
        if text.has_ended():
            text.tail += pending[boundary.start() + 1 :]
            pending = bytearray()
        elif text.undecoded:
            pending = bytearray(text.undecoded) + pending[boundary.start() + 1 :]
            text.undecoded = b""
        else:
            del pending[: boundary.end()]

    if not text.has_ended():
        yield from _split_end(bytes(pending), text)


def _find_events(chunks: Iterator[bytes], text: TraceText) -> bytearray:
    """Read up to the opening bracket of the events; return the text after it."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        stripped = bytes(pending[:64]).lstrip(b"\xef\xbb\xbf \t\r\n")
        if stripped.startswith(b"["):
            text.found_events, text.bare, text.head = True, True, b"["
            return pending[pending.index(b"[") + 1 :]

        begins = [m.end() for m in islice(_EVENTS_BEGIN.finditer(pending), _MAX_CANDIDATES)]
        if begins:
            # A key within another value, or a word of a text, may look the same.
            begin = next((at for at in begins if _is_head(pending[:at])), begins[0])
            text.found_events, text.head = True, bytes(pending[:begin])
            return pending[begin:]
        if len(pending) > _MAX_HEAD_BYTES:
            break

    text.head = bytes(pending)
    return bytearray()


def _is_head(text: bytearray) -> bool:
    """Return whether a list that begins at the end of this text is a value of the top level."""
    return any(map(_is_object, with_repair(bytes(text).lstrip(BOM) + b"]}")))


def with_repair(text: bytes) -> tuple[bytes, bytes]:
    """Return a text as it is written, and with invalid escapes taken literally."""
    return text, _BAD_ESCAPE_BYTES.sub(rb"\\\\", text)


def _is_object(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return False
    return True


def _find_last_boundary(pending: bytearray, searched: int) -> re.Match[bytes] | None:
    """Find the last boundary between two events, in ever larger parts of the text's end.

    Args:
        pending: The text.
        searched: There is no boundary before this position, so that a long event is not searched
            again with every chunk.
    """
    search_bytes = _FIRST_SEARCH_BYTES
    while True:
        begin = max(searched, len(pending) - search_bytes)
        last = None
        for last in _BOUNDARY.finditer(pending, begin):  # noqa: B007  (the last one is wanted)
            pass
        if last is not None or begin == searched:
            return last
        search_bytes *= 8


def _split_end(pending: bytes, text: TraceText) -> Iterator[bytes]:
    """Yield the events at the end of the text, up to the closing bracket if it is clear which."""
    if pending.lstrip().startswith(b"]"):
        text.complete = True
        text.tail += pending.lstrip()[1:]
        return

    # The first candidate that fits: a list in a later key ends like the list of events, and from
    # inside an event the text after it closes more brackets than it opens.
    ends = [m.end() for m in _EVENTS_END.finditer(pending)]
    for end in ends[-_MAX_CANDIDATES:]:
        after = pending[end:].lstrip()[1:]
        if _is_tail(after, bare=text.bare):
            text.complete = True
            text.tail += after
            yield _as_list(pending, end)
            return
    yield _as_list(pending, len(pending))


def _as_list(pending: bytes | bytearray, end: int) -> bytes:
    """Return the text up to a position as a JSON list, copied only once since batches are large."""
    return b"".join((b"[", memoryview(pending)[:end], b"]"))


def _is_tail(after: bytes, *, bare: bool) -> bool:
    """Return whether this text can follow the list of events."""
    after = after.strip()
    if bare or after in (b"", b"}"):
        return after == b"" if bare else after == b"}"
    try:
        values = msgspec.json.decode(b"{" + after.lstrip(b","), type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return False
    return bool(values)


@dataclass(frozen=True)
class Salvaged:
    """The readable events of a batch that cannot be decoded as a whole.

    Attributes:
        events: Decoded events; None for text that is not an event.
        texts: The text of each event with its escapes repaired; empty where it is not an event.
    """

    events: list[Any]
    texts: list[str]


def salvage(batch: bytes, text: TraceText, *, exact: bool = False) -> Salvaged:
    """Decode a batch (a JSON list that may end too early) event by event, which is slower.

    Invalid escapes (Windows paths written without escaping) are taken literally, bytes that are
    not UTF-8 are replaced, control characters within strings are accepted, and a broken event is
    skipped.

    Args:
        batch: The batch.
        text: Its ``undecoded`` becomes the text after the last whole event. If the list's closing
            bracket is in the batch, the text is ``complete`` and ``tail`` is the text after it.
        exact: Return numbers with decimals as strings, so that no digit is lost.
    """
    decoder = _EXACT_DECODER if exact else _DECODER
    plain = _BAD_ESCAPE.sub(r"\\\\", batch[1:-1].decode("utf-8", "replace"))
    salvaged = Salvaged([], [])
    at = 0

    while True:
        while at < len(plain) and plain[at] in " \t\r\n,":
            at += 1
        if at >= len(plain):
            text.undecoded = b""
            return salvaged
        if plain[at] == "]":
            text.complete = True
            text.tail += plain[at + 1 :].encode("utf-8", "replace")
            return salvaged

        begin = at
        try:
            event, at = decoder.raw_decode(plain, at)
        except (ValueError, RecursionError) as error:
            following = _BOUNDARY_TEXT.search(plain, at)
            if _is_cut_off(error, plain, at) or following is None:
                text.undecoded = plain[at:].encode("utf-8", "replace")
                return salvaged
            event, at = None, following.end()
            if at > max(_MIN_PASSED_CHARS, len(plain) // 16):
                # An error counts the lines before it, and there may be many errors.
                plain, begin, at = plain[at:], 0, 0

        salvaged.events.append(event)
        salvaged.texts.append(plain[begin:at] if event is not None else "")


def _is_cut_off(error: Exception, text: str, at: int) -> bool:
    """Return whether an event cannot be decoded because the text ends inside it."""
    if not isinstance(error, json.JSONDecodeError) or len(text) - at > _MAX_BROKEN_CHARS:
        return False
    return error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
