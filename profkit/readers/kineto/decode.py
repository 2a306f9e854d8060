"""Batches of text to batches of columns."""

import re
from typing import Any, Final

import msgspec

from profkit.readers.kineto.batch import Batch, Vocabulary, to_columns
from profkit.readers.kineto.interning import OURS
from profkit.readers.kineto.schema import (
    BATCH,
    CATEGORIES_ONLY,
    EVENT,
    EXACT_BATCH,
    EXACT_EVENT,
    Complete,
    Edge,
    Instant,
)
from profkit.readers.kineto.split import UNREADABLE, Text, salvage
from profkit.readers.stages import Stages

_MANY_DIGITS: Final = re.compile(rb'"ts"\s*:\s*"?\d{14,}\.\d')
"""Absolute microseconds with decimals: more digits than a float holds. Also as a string."""
_OURS_WRITTEN: Final = f'"{OURS}"'.encode()
_TIMED: Final = (Complete, Edge, Instant)
_FLOAT_HOLDS_DECIMALS_US: Final = 2**43
"""Up to here, 101 days, a float is nearer than half a nanosecond to three decimals."""


class Reader:
    """Batches of text to batches of columns.

    Attributes:
        words: The vocabulary of the columns.
        n_events: Entries of ``traceEvents`` so far.
        n_skipped: Those among them that are no events.
        clean: Every batch so far could be decoded in one go.
    """

    def __init__(self, text: Text, stages: Stages) -> None:
        self._text = text
        self._stages = stages
        self._exact = False
        self.words = Vocabulary()
        self.n_events = 0
        self.clean = True
        self.n_skipped = 0

    def columns(self, batch: bytes) -> Batch:
        """The columns of a batch of whole events: a JSON list."""
        with self._stages.stage("decode"):
            events = self._events(batch)
        with self._stages.stage("columns"):
            found = to_columns(events, self.words)
            # Their memory is given back here, and that takes time too.
            del events
        self.n_events += found.n_events
        self.n_skipped += found.n_skipped
        return found

    def _events(self, batch: bytes) -> list[Any]:
        events = self._decoded(batch)
        if not self._exact and _needs_digits(events) and _MANY_DIGITS.search(batch):
            self._exact = True
            events = self._decoded(batch)
        return events

    def _decoded(self, batch: bytes) -> list[Any]:
        """The events of a batch; None stands for what is no event."""
        decoder = EXACT_BATCH if self._exact else BATCH
        try:
            found: list[Any] = decoder.decode(batch)
        except UNREADABLE:
            # A batch is salvaged once, since that tells where the events end.
            self._exact = self._exact or _MANY_DIGITS.search(batch) is not None
            return self._salvaged(batch)
        if _OURS_WRITTEN in batch:
            written = CATEGORIES_ONLY.decode(batch)
            found = [e for e, own in zip(found, written, strict=True) if own.cat != OURS]
        return found

    def _salvaged(self, batch: bytes) -> list[Any]:
        """The events of a batch that is not as it should be."""
        self.clean = False
        salvaged = salvage(batch, exact=self._exact)
        if salvaged.ended:
            self._text.complete = True
            self._text.tail += salvaged.rest
        else:
            self._text.rest = salvaged.rest
        return [self._converted(event) for event in salvaged.events if not is_ours(event)]

    def _converted(self, event: Any) -> Any:  # noqa: ANN401  (whatever the file has there)
        kind = EXACT_EVENT if self._exact else EVENT
        try:
            return msgspec.convert(event, kind, strict=False)
        except _NOT_CONVERTED:
            return _forgiven(event, kind)


def is_ours(event: Any) -> bool:  # noqa: ANN401  (whatever the file has there)
    """Whether profkit added an entry to the trace for viewers; it is no part of the recording."""
    return isinstance(event, dict) and event.get("cat") == OURS


_NOT_CONVERTED: Final = (msgspec.ValidationError, UnicodeEncodeError)
"""The second is what half of a surrogate pair in a key leads to: msgspec looks keys up as UTF-8."""


def _needs_digits(events: list[Any]) -> bool:
    """Whether times are so large that a float does not hold the decimals they may have."""
    timed = (e.ts for e in events if isinstance(e, _TIMED) and e.ts is not None)
    return next(timed, 0.0) >= _FLOAT_HOLDS_DECIMALS_US


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
            except _NOT_CONVERTED:
                continue
            kept[key] = value
        event = {**event, "args": kept}
    else:
        event = {key: value for key, value in event.items() if key != "args"}
    try:
        return msgspec.convert(event, kind, strict=False)
    except _NOT_CONVERTED:
        return None
