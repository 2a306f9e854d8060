"""Writes and reads the memory records of ``profkit run``."""

from typing import Final

import msgspec

from profkit.errors import DamagedFileError
from profkit.json_text import encode
from profkit.model.live_memory import SCHEMA, LiveMemory
from profkit.readers.plain_json import UNREADABLE, decode_plain
from profkit.readers.stream import Place, read_whole

SUFFIX: Final = ".memory.json.gz"
_FAMILY: Final = SCHEMA.partition("/")[0]


def encode_live(live: LiveMemory) -> bytes:
    """Encode a record as JSON in UTF-8, with the schema first, by which it is recognized."""
    fields: dict[str, object] = msgspec.to_builtins(live)
    return encode({"schema": fields.pop("schema"), **fields})


def is_live(start: bytes) -> bool:
    """Return whether decompressed bytes are the start of a memory record."""
    return start.startswith(f'{{"schema":"{_FAMILY}/'.encode())


def read_live(place: Place, limit_bytes: int | None = None) -> LiveMemory:
    """Read a memory record.

    Raises:
        DamagedFileError: It is incomplete, or has a layout that this version does not know.
        LoadError: It cannot be read, or is larger than ``limit_bytes``.
    """
    text = read_whole(place, limit_bytes)
    try:
        live = msgspec.convert(decode_plain(text), LiveMemory)
    except UNREADABLE as error:
        message = f"{place} is not a complete memory record: {error}."
        raise DamagedFileError(message, "Run the program again with profkit run.") from error

    # A later layout may have all fields of this one, with other meanings.
    if live.schema != SCHEMA:
        message = f"{place} is a memory record of the layout {live.schema}, not {SCHEMA}."
        raise DamagedFileError(message, "Run the program again with profkit run.")
    return live
