"""Files of what was watched of a program's memory: written and read here, so that both agree."""

from typing import Final

import msgspec

from profkit.errors import DamagedFileError
from profkit.model.live_memory import SCHEMA, LiveMemory
from profkit.readers.older_layouts import upgrade_memory
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

SUFFIX: Final = ".memory.json.gz"
_FIRST: Final = "profkit.memory/1"
_FAMILY: Final = SCHEMA.partition("/")[0]


def encode(live: LiveMemory) -> bytes:
    """As JSON in UTF-8, the schema first, so that the start of a file tells what it is."""
    fields: dict[str, object] = msgspec.to_builtins(live)
    return msgspec.json.encode({"schema": fields.pop("schema"), **fields})


def is_live(start: bytes) -> bool:
    """Whether a file begins as one of these does.

    Args:
        start: Its first bytes, unpacked.
    """
    return start.startswith(f'{{"schema":"{_FAMILY}/'.encode())


def read_live(place: Place, limit_bytes: int | None = None) -> LiveMemory:
    """Read such a file.

    Args:
        place: The file, packed or not.
        limit_bytes: How large it may be unpacked; by default 4 GiB, or 200 times its size.

    Raises:
        DamagedFileError: It is not whole, or of a layout that this version does not know.
        LoadError: It cannot be read.
    """
    with open_plain(place) as stream:
        limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
        text = b"".join(Chunks(stream, limit))
    try:
        tree = msgspec.json.decode(text)
        if tree.get("schema") == _FIRST:
            tree = {**upgrade_memory(tree), "schema": SCHEMA}
        return msgspec.convert(tree, LiveMemory)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{place} is not a whole record of a program's memory: {error}."
        raise DamagedFileError(message, "Run the program again with profkit run.") from error
