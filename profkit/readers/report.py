"""Reads reports that were saved as JSON."""

from typing import Final

import msgspec

from profkit.errors import DamagedFileError
from profkit.model.report import SCHEMA, Report
from profkit.patterns import regex
from profkit.readers.plain_json import UNREADABLE, decode_plain
from profkit.readers.stream import Place, is_folder, open_plain, read_whole

_START: Final = regex(rb'\s*\{\s*"profkit"\s*:\s*"[^"]*"\s*,\s*"source"\s*:\s*\{')
_START_BYTES: Final = 256


def is_report(place: Place) -> bool:
    """Return whether a file begins like a saved report; False for a folder.

    Raises:
        LoadError: It cannot be read.
    """
    if is_folder(place):
        return False
    with open_plain(place) as stream:
        return _START.match(stream.read(_START_BYTES)) is not None


def read_report(place: Place, limit_bytes: int | None = None) -> Report | None:
    """Read a report of ``profkit analyze --format json``; None if the file has other data.

    Raises:
        DamagedFileError: It is incomplete, or has a layout that this version does not know.
        LoadError: It cannot be read, or is larger than ``limit_bytes``.
    """
    if not is_report(place):
        return None

    text = read_whole(place, limit_bytes)
    try:
        tree = decode_plain(text)
        if "cut" in tree:
            message = f"{place} is a report that was cut to a number of bytes."
            raise DamagedFileError(message, "Save it without --budget-bytes.")
        report = msgspec.convert(tree, Report)
    except UNREADABLE as error:
        message = f"{place} is incomplete, or not a report of this version: {error}."
        raise DamagedFileError(message, "Save the report again, or compare the traces.") from error

    # A later layout may have all fields of this one, with other meanings.
    if report.schema != SCHEMA:
        message = f"{place} is a report of the layout {report.schema}, not {SCHEMA}."
        raise DamagedFileError(message, "Compare the traces themselves.")
    return report
