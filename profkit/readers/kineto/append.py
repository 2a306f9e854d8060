"""Adds events to a trace's text; the events that it has stay exactly as they are written."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from profkit.dataclass import dataclass
from profkit.errors import NotATraceError
from profkit.model.events import Category, EventTable, Int32s
from profkit.model.torch_names import OWN_WORK_PREFIX
from profkit.readers.kineto import keys, metadata
from profkit.readers.kineto.decode import OURS_QUOTED, is_ours
from profkit.readers.kineto.schema import CATEGORIES_ONLY
from profkit.readers.kineto.split import (
    BOM,
    UNREADABLE,
    TraceText,
    salvage,
    split_batches,
    with_repair,
)
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_SEPARATOR: Final = b",\n"
_HEAD: Final = b"{%b:[" % keys.quote(keys.EVENTS)
_EVENTS_AT_ONCE: Final = 4096
_UNREADABLE_EVENT: Final = b'{"ph":"M","name":"unreadable_event","pid":0,"tid":0,"args":{}}'
"""Replaces an entry that is not an event, so that the positions of later events do not change."""
_CONCEALED_EVENT: Final = b'{"ph":"M","name":"concealed_event","pid":0,"tid":0,"args":{}}'
"""Replaces an event of profkit itself: metadata of a kind that no viewer knows."""


@dataclass(frozen=True)
class OwnPositions:
    """Positions in the file of the events of profkit itself, ascending.

    Attributes:
        concealed: Events that are left out.
        work: Events that stand for the time of its work.
    """

    concealed: Int32s
    work: Int32s

    @classmethod
    def of(cls, events: EventTable) -> "OwnPositions":
        """Find the events of profkit in a recording."""
        return cls(
            *(
                np.sort(events.position[events.rows_by_category[category]])
                for category in (Category.CONCEALED, Category.PROFKIT)
            )
        )


_NONE: Final[Int32s] = np.zeros(0, dtype=np.int32)
NO_OWN: Final = OwnPositions(_NONE, _NONE)


def with_events(
    place: Place,
    added: Callable[[int], Iterable[bytes]],
    limit_bytes: int | None = None,
    *,
    own: OwnPositions = NO_OWN,
) -> Iterator[bytes]:
    """Yield the text of a trace with events added, in pieces of a few MiB.

    Events that an earlier call added, recognized by their category, are removed. A truncated trace
    is closed, and invalid JSON is repaired as far as it can be read.

    Args:
        place: A trace, compressed or not.
        added: Given the file's base time in nanoseconds since 1970, returns the events to add,
            each a JSON object of the category :data:`keys.PROFKIT`.
        limit_bytes: Maximum decompressed size, as for :func:`profkit.load`.
        own: The events of profkit itself, in whose place viewers find nothing, or a mark.

    Raises:
        NotATraceError: The file has no list of events.
        LoadError: It cannot be read.
    """
    recorded = RecordedText(own)
    limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
    text = TraceText()
    before: bytes | None = None
    with open_plain(place) as stream:
        for batch in split_batches(Chunks(stream, limit), text):
            events = recorded.take_events(batch, text)
            if events:
                yield _head(text) if before is None else before
                yield events
                before = _SEPARATOR

    if not text.found_events:
        message = f"{place} has no traceEvents."
        raise NotATraceError(message, "profkit reads what torch.profiler exports.")
    if before is None:
        yield _head(text)

    # The base time may be a key below the events, so the new events come last.
    new_events = iter(added(metadata.base_time_ns(metadata.header_of(text) or {})))
    while block := list(islice(new_events, _EVENTS_AT_ONCE)):
        if before is not None:
            yield before
        yield _SEPARATOR.join(block)
        before = _SEPARATOR
    yield _tail(text)


class RecordedText:
    """The recorded events of a trace as they are written, batch by batch from the first.

    Args:
        own: Events that are replaced, so that later ones keep their positions.
    """

    def __init__(self, own: OwnPositions = NO_OWN) -> None:
        self._own = own
        self._n_events = 0

    def take_events(self, batch: bytes, text: TraceText) -> bytes:
        """Return the events of a batch (a JSON list), without brackets and what profkit added."""
        try:
            events = CATEGORIES_ONLY.decode(batch)
            # The decoder does not check the encoding of the values that it skips.
            batch.decode()
        except UNREADABLE:
            salvaged = salvage(batch, text)
            written = [
                _event_text(event, written)
                for event, written in zip(salvaged.events, salvaged.texts, strict=True)
                if not is_ours(event)
            ]
            return _SEPARATOR.join(self._replace_own(written))

        # Most batches need no change, so their text is passed on as it is.
        has_ours = OURS_QUOTED in batch
        if not has_ours and not self._has_own(len(events)):
            self._n_events += len(events)
            return batch[1:-1].strip()

        raws = msgspec.json.decode(batch, type=list[msgspec.Raw])
        written = [
            bytes(raw) for raw, event in zip(raws, events, strict=True) if event.cat != keys.PROFKIT
        ]
        return _SEPARATOR.join(self._replace_own(written))

    def _has_own(self, n_events: int) -> bool:
        """Return whether any of the next events is profkit's own."""
        limits = (self._n_events, self._n_events + n_events)
        ranges = (
            np.searchsorted(positions, limits)
            for positions in (self._own.concealed, self._own.work)
        )
        return any(first < last for first, last in ranges)

    def _replace_own(self, written: list[bytes]) -> list[bytes]:
        """Replace the events of profkit itself among the next events."""
        for positions, replace in (
            (self._own.concealed, lambda _: _CONCEALED_EVENT),
            (self._own.work, _mark_work),
        ):
            places = positions - self._n_events
            for place in places[(places >= 0) & (places < len(written))].tolist():
                written[place] = replace(written[place])
        self._n_events += len(written)
        return written


def _mark_work(written: bytes) -> bytes:
    """Return an event of profkit's work as an annotation, which readers recognize again."""
    try:
        event = msgspec.json.decode(written, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return _CONCEALED_EVENT
    texts = {"cat": "user_annotation", "name": f"{OWN_WORK_PREFIX}own work"}
    return msgspec.json.encode({**event, **texts, "args": {}})


def _event_text(event: Any, written: str) -> bytes:  # noqa: ANN401  (any JSON value)
    if not isinstance(event, dict):
        return _UNREADABLE_EVENT
    encoded = written.encode("utf-8", "replace")
    if _is_object(encoded):
        return encoded
    try:
        plain = json.loads(written, strict=False, parse_constant=_to_null)
        return json.dumps(plain, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return _UNREADABLE_EVENT


def _to_null(constant: str) -> None:
    """Replace ``NaN`` and ``Infinity``, which JSON does not have."""


def _head(text: TraceText) -> bytes:
    """Return valid text before the events, up to the opening bracket."""
    if text.bare:
        return text.head
    heads = with_repair(text.head.lstrip(BOM))
    return next((head for head in heads if _is_object(head + b"]}")), _HEAD)


def _tail(text: TraceText) -> bytes:
    """Return valid text after the events, from the closing bracket on."""
    if text.bare:
        return b"]\n"
    tails = with_repair(bytes(text.tail)) if text.complete else ()
    return b"]" + next((tail for tail in tails if _is_object(_HEAD + b"]" + tail)), b"}\n")


def _is_object(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE:
        return False
    return True
