"""The layout of a file of last steps, which the recorded program maps into its memory.

A write to mapped memory is in the system's cache at once: the file is complete whatever ends the
process. Its size is fixed. A header and a place for the error that ends the program are followed by
three circular buffers of records, and a table of texts in two halves, of which the older one is
overwritten.

A record has its number at both ends, from 1. If it was not written completely, the two differ.
Record ``n`` of a buffer is at place ``n % size``. A text is preceded by its length, a serial number
and a checksum. Records refer to it by its offset and its serial number, so that a text that was
overwritten is recognized. Numbers are little-endian.
"""

import contextlib
import struct
from pathlib import Path
from typing import Final

from profkit.dataclass import dataclass

SUFFIX: Final = ".laststeps"
MAGIC: Final = b"profkit steps 1\n"

BLOCK: Final = struct.Struct("<II")
"""Length and checksum (CRC-32) of the JSON text after it, in the header and for the error."""
HEADER_AT: Final = 16
ERROR_AT: Final = 4096
TEXT: Final = struct.Struct("<III")
"""Length, serial number and checksum (CRC-32) of the UTF-8 text after it."""


@dataclass(frozen=True)
class BufferPlace:
    """The offset of a buffer, its number of records, and their layout."""

    start: int
    size: int
    record: struct.Struct

    @property
    def end(self) -> int:
        """Return the offset of the first byte after the buffer."""
        return self.start + self.size * self.record.size

    def at(self, number: int) -> int:
        """Return the offset of a record."""
        return self.start + number % self.size * self.record.size


STEPS: Final = BufferPlace(16384, 2048, struct.Struct("<4q"))
"""Number, end, total time that the program had waited for data until then, number."""
MEMORY: Final = BufferPlace(STEPS.end, 1024, struct.Struct("<6q"))
"""Number, time, resident bytes, allocated and reserved bytes of all devices, number; -1 where a
size is not known."""
STACKS: Final = BufferPlace(MEMORY.end, 4096, struct.Struct("<5q4Iq"))
"""Number, thread, times of the first and last sample, number of samples, offset and serial number
of the thread's name, offset and serial number of its stack, number."""
HALF: Final = 256 << 10
TABLE_AT: Final = STACKS.end
SIZE: Final = TABLE_AT + 2 * HALF
LINES: Final = "\n"
"""Separates the frames of a stack, the innermost last."""
PARTS: Final = "\t"
"""Separates file, line and function of a frame."""


def find_last_steps(path: str) -> list[str]:
    """Find files of last steps: the path itself, or in a folder and the folders in it."""
    place = Path(path)
    with contextlib.suppress(OSError):
        if place.is_dir():
            return sorted(str(file) for file in place.rglob(f"*{SUFFIX}"))
        return [path] if path.endswith(SUFFIX) and place.is_file() else []
    return []
