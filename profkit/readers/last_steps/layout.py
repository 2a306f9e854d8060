"""The layout of a file of last steps, which the recorded program maps into its memory.

A write to mapped memory is in the system's cache at once: the file is complete whatever ends the
process. Its size is fixed. After a header and a place for the error that ends the program follow
three circular buffers of records, and a table of texts in two halves, of which the older one is
written over.

A record has its number at both ends, from 1: of one that was not written to its end they differ.
Record ``n`` of a buffer is at place ``n % size``. A text has its length, a serial number and a
checksum before it; records refer to it by its offset and its serial number, so that one that was
written over is recognized. Numbers are little-endian.
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
    """Where a buffer is, how many records it has, and their layout."""

    start: int
    size: int
    record: struct.Struct

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.start + self.size * self.record.size

    def at(self, number: int) -> int:
        """Where a record is."""
        return self.start + number % self.size * self.record.size


STEPS: Final = BufferPlace(16384, 2048, struct.Struct("<4q"))
"""Number, end, time that the program has waited for data so far, number."""
MEMORY: Final = BufferPlace(STEPS.end, 1024, struct.Struct("<6q"))
"""Number, time, resident bytes, allocated and reserved bytes of all devices, number; -1 where a
size is not known."""
STACKS: Final = BufferPlace(MEMORY.end, 4096, struct.Struct("<5q4Iq"))
"""Number, thread, first and last sample, number of samples; offset and serial number of the
thread's name and of its stack; number."""
HALF: Final = 256 << 10
TABLE_AT: Final = STACKS.end
SIZE: Final = TABLE_AT + 2 * HALF
LINES: Final = "\n"
"""Between the frames of a stack, the innermost last; each has three parts."""
PARTS: Final = "\t"
"""Between file, line and function."""


def last_steps_files(path: str) -> list[str]:
    """A file of last steps itself, or those of a folder and the folders in it."""
    found = Path(path)
    with contextlib.suppress(OSError):
        if found.is_dir():
            return sorted(str(each) for each in found.rglob(f"*{SUFFIX}"))
        return [path] if path.endswith(SUFFIX) and found.is_file() else []
    return []
