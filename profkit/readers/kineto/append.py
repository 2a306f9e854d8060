"""A trace's text with more events at the end of its list; its own stay as they are written."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from profkit.errors import NotATraceError
from profkit.readers.kineto import metadata
from profkit.readers.kineto.decode import is_ours
from profkit.readers.kineto.interning import OURS
from profkit.readers.kineto.schema import CATEGORIES_ONLY
from profkit.readers.kineto.split import UNREADABLE, Text, cut, salvage
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_BETWEEN: Final = b",\n"
_BOM: Final = b"\xef\xbb\xbf"
_BAD_ESCAPE: Final = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HEAD: Final = b'{"traceEvents":['
_OURS_WRITTEN: Final = f'"{OURS}"'.encode()
_AT_ONCE: Final = 4096

_UNREADABLE_EVENT: Final = b'{"ph":"M","name":"unreadable_event","pid":0,"tid":0,"args":{}}'
"""Stands for an entry that is no event, so that the numbers of those behind it stay."""


def with_events(
    place: Place,
    added: Callable[[int], Iterable[bytes]],
    limit_bytes: int | None = None,
) -> Iterator[bytes]:
    """The text of a trace, with events added.

    What an earlier call added, told by its category, goes. A trace that is cut off is closed, and
    what is broken in it is repaired where it can be read at all.

    Args:
        place: A trace, packed or not.
        added: From the nanoseconds since 1970 that the times of the file are relative to, the
            events to add, each a JSON object of the category :data:`OURS`.
        limit_bytes: How large it may be unpacked, as for :func:`profkit.load`.

    Yields:
        Pieces of one JSON text, each of a few MiB: memory does not grow with the trace.

    Raises:
        NotATraceError: It has no list of events.
        LoadError: It cannot be read.
    """
    limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
    text = Text()
    before: bytes | None = None
    with open_plain(place) as stream:
        for batch in cut(Chunks(stream, limit), text):
            events = _as_written(batch, text)
            if events:
                yield _head(text) if before is None else before
                yield events
                before = _BETWEEN
    if not text.found_events:
        message = f"{place} has no traceEvents."
        raise NotATraceError(message, "profkit reads what torch.profiler exports.")
    if before is None:
        yield _head(text)
    ours = iter(added(metadata.base_time_ns(metadata.header_of(text) or {})))
    while some := list(islice(ours, _AT_ONCE)):
        if before is not None:
            yield before
        yield _BETWEEN.join(some)
        before = _BETWEEN
    yield _tail(text)


def _as_written(batch: bytes, text: Text) -> bytes:
    """The events of a batch (a JSON list) without its brackets, and without those that we added."""
    try:
        events = CATEGORIES_ONLY.decode(batch)
        # What is skipped is not looked at as text.
        batch.decode()
    except UNREADABLE:
        return _repaired(batch, text)
    if _OURS_WRITTEN not in batch:
        return batch[1:-1].strip()
    raws = msgspec.json.decode(batch, type=list[msgspec.Raw])
    kept = [bytes(raw) for raw, own in zip(raws, events, strict=True) if own.cat != OURS]
    return _BETWEEN.join(kept)


def _repaired(batch: bytes, text: Text) -> bytes:
    """The events of a batch that is not as it should be."""
    salvaged = salvage(batch)
    if salvaged.ended:
        text.complete = True
        text.tail += salvaged.rest
    else:
        text.rest = salvaged.rest
    return _BETWEEN.join(
        _event_text(event, written)
        for event, written in zip(salvaged.events, salvaged.texts, strict=True)
        if not is_ours(event)
    )


def _event_text(event: Any, written: str) -> bytes:  # noqa: ANN401  (whatever the file has there)
    if not isinstance(event, dict):
        return _UNREADABLE_EVENT
    encoded = written.encode("utf-8", "replace")
    if _decodes(encoded):
        return encoded
    try:
        plain = json.loads(written, strict=False, parse_constant=_no_number)
        return json.dumps(plain, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return _UNREADABLE_EVENT


def _no_number(word: str) -> None:
    """What stands for ``NaN`` and ``Infinity``, which are no JSON."""


def _head(text: Text) -> bytes:
    """What stands before the events, to the opening bracket."""
    if text.bare:
        return text.head
    head = text.head.lstrip(_BOM)
    candidates = (head, _BAD_ESCAPE.sub(rb"\\\\", head))
    return next((each for each in candidates if _decodes(each + b"]}")), _HEAD)


def _tail(text: Text) -> bytes:
    """What stands behind the events, from the closing bracket on."""
    if text.bare:
        return b"]\n"
    tail = bytes(text.tail)
    candidates = (tail, _BAD_ESCAPE.sub(rb"\\\\", tail)) if text.complete else ()
    fits = (each for each in candidates if _decodes(_HEAD + b"]" + each))
    return b"]" + next(fits, b"}\n")


def _decodes(text: bytes) -> bool:
    """Whether a text is a JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE:
        return False
    return True
