"""Decodes batches of JSON text and converts them to columns."""

import ctypes
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from profkit.patterns import regex
from profkit.readers.kineto import keys
from profkit.readers.kineto.batch import Batch, InternTables, to_columns
from profkit.readers.kineto.schema import (
    BATCHES,
    CATEGORIES_ONLY,
    COLLECTIVE,
    EVENTS,
    RAW_ARGS,
    BeginEnd,
    Complete,
    Instant,
)
from profkit.readers.kineto.split import UNREADABLE, TraceText, salvage
from profkit.readers.progress import Stages

_MANY_DIGITS: Final = regex(rb'"ts"\s*:\s*"?\d{14,}\.\d')
"""Absolute microseconds with decimals, as number or string: more digits than a float has."""
OURS_QUOTED: Final = keys.quote(keys.PROFKIT)
_COLLECTIVE_QUOTED: Final = keys.quote(COLLECTIVE)
_ANY: Final = EVENTS[False, True]
_TIMED: Final = (Complete, BeginEnd, Instant)
_FLOAT_EXACT_US: Final = 2**43
"""Up to here, 101 days, a float represents three decimals to within half a nanosecond."""
_NOT_CONVERTED: Final = (msgspec.ValidationError, UnicodeEncodeError)
"""The second is raised for an unpaired surrogate in a key, which msgspec encodes as UTF-8."""


class BatchReader:
    """Converts batches of text to batches of columns.

    Attributes:
        interned: The names, categories and lanes that the columns refer to.
        clean: Whether every batch so far could be decoded without salvaging.
    """

    def __init__(self, text: TraceText, stages: Stages) -> None:
        self._text = text
        self._stages = stages
        self._exact = False
        self._has_collectives = False
        self.interned = InternTables()
        self.clean = True

    def columns(self, batch: bytes) -> Batch:
        """Return the columns of a batch of whole events: a JSON list."""
        with self._stages.stage("decode"):
            events = self._decode_exactly(batch)
        with self._stages.stage("columns"):
            columns = to_columns(events, self.interned)
            # Freeing the events takes time too, so it belongs to this stage.
            del events
        return columns

    def _decode_exactly(self, batch: bytes) -> list[Any]:
        """Decode a batch, again with all digits if a float does not have them."""
        events = self._decode(batch)
        if not self._exact and _needs_digits(events) and _MANY_DIGITS.search(batch):
            self._exact = True
            events = self._decode(batch)
        return events

    def _decode(self, batch: bytes) -> list[Any]:
        """Return the events of a batch, with None for an entry that is not an event."""
        try:
            events: list[Any] = BATCHES[self._exact, self._has_collectives].decode(batch)
        except UNREADABLE:
            # Collectives are looked for only here: a search takes a fifth of the decoding.
            if self._has_collectives != (has_collectives := _COLLECTIVE_QUOTED in batch):
                self._has_collectives = has_collectives
                return self._decode(batch)

            # Salvaging updates the text's end, so it must not happen twice.
            self._exact = self._exact or _MANY_DIGITS.search(batch) is not None
            return self._salvage(batch)

        if contains(batch, OURS_QUOTED):
            entries = CATEGORIES_ONLY.decode(batch)
            pairs = zip(events, entries, strict=True)
            events = [event for event, entry in pairs if entry.cat != keys.PROFKIT]
        return events

    def _salvage(self, batch: bytes) -> list[Any]:
        self.clean = False
        salvaged = salvage(batch, self._text, exact=self._exact)
        kind = EVENTS[self._exact, True]
        return [_convert(event, kind) for event in salvaged.events if not is_ours(event)]


def contains(text: bytes, part: bytes) -> bool:
    """Return whether a large text contains a few bytes, three times as fast as ``in``."""
    if _memmem is None:
        return part in text
    return _memmem(text, len(text), part, len(part)) is not None


def _load_memmem() -> Callable[..., Any] | None:
    """Load the C library's search; None where it has none, as on Windows."""
    try:
        function = ctypes.CDLL(None).memmem
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    function.restype = ctypes.c_void_p
    return function


_memmem: Final = _load_memmem()


def is_ours(event: Any) -> bool:  # noqa: ANN401  (any JSON value)
    """Return whether profkit added an entry to the trace for viewers: it was not recorded."""
    return isinstance(event, dict) and event.get("cat") == keys.PROFKIT


def _needs_digits(events: list[Any]) -> bool:
    """Return whether times are too large for a float to represent their decimals."""
    # All times of a file have the same base, so the first one tells.
    timed = (e.ts for e in events if isinstance(e, _TIMED) and e.ts is not None)
    return next(timed, 0.0) >= _FLOAT_EXACT_US


def _convert(event: Any, kind: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Return an event without ``args`` of a wrong type; None if it is still not valid."""
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        return None  # before the errors of a conversion, which take long where there are many

    args = event.get("args")
    if isinstance(args, dict) and not RAW_ARGS.isdisjoint(args):
        raw = {key: msgspec.Raw(json.dumps(args[key]).encode()) for key in RAW_ARGS & args.keys()}
        event = {**event, "args": {**args, **raw}}
    try:
        return msgspec.convert(event, kind, strict=False)
    except _NOT_CONVERTED:
        pass

    # Arguments are checked one by one only where the event as a whole cannot be converted.
    if isinstance(args, dict):
        event = {**event, "args": {k: v for k, v in args.items() if _is_valid_argument(k, v)}}
    else:
        event = {key: value for key, value in event.items() if key != "args"}
    try:
        return msgspec.convert(event, kind, strict=False)
    except _NOT_CONVERTED:
        return None


def _is_valid_argument(key: str, value: object) -> bool:
    try:
        msgspec.convert({"ph": "X", "ts": 0, "args": {key: value}}, _ANY, strict=False)
    except _NOT_CONVERTED:
        return False
    return True
