"""Reports that were saved as JSON, read again."""

import re
from typing import Final

import msgspec

from profkit.errors import DamagedFileError
from profkit.model.report import SCHEMA, Report
from profkit.readers.older_layouts import upgrade_report
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_FIRST: Final = "profkit.report/1"
_START: Final = re.compile(rb'\s*\{\s*"profkit"\s*:\s*"[^"]*"\s*,\s*"source"\s*:\s*\{')
_START_BYTES: Final = 256


def read_report(place: Place, limit_bytes: int | None = None) -> Report | None:
    """Read what ``profkit analyze --format json`` wrote; None if a file is something else.

    Args:
        place: The file, packed or not.
        limit_bytes: How large it may be unpacked; by default 4 GiB, or 200 times its size.

    Raises:
        DamagedFileError: It is not whole, or of a layout that this version does not know.
        LoadError: It cannot be read.
    """
    with open_plain(place) as stream:
        if not _START.match(stream.read(_START_BYTES)):
            return None
    with open_plain(place) as stream:
        limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
        text = b"".join(Chunks(stream, limit))
    try:
        tree = msgspec.json.decode(text)
        if tree.get("schema") == _FIRST:
            tree = {**upgrade_report(tree), "schema": SCHEMA}
        report = msgspec.convert(tree, Report)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{place} is not a whole report, or not one of this version: {error}."
        raise DamagedFileError(message, "Write the report again, or compare the traces.") from error
    if report.schema != SCHEMA:
        message = f"{place} is a report of the layout {report.schema}, not {SCHEMA}."
        raise DamagedFileError(message, "Compare the traces themselves.")
    return report
