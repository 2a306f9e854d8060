"""The file of last steps, mapped into the memory of the program.

Its layout is in :mod:`profkit.readers.last_steps.layout`.
"""

import contextlib
import errno
import mmap
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from profkit.capture.process.stack_sampler import Calls
from profkit.readers.last_steps.layout import (
    BLOCK,
    ERROR_AT,
    HALF,
    HEADER_AT,
    LINES,
    MAGIC,
    MEMORY,
    PARTS,
    SIZE,
    STACKS,
    STEPS,
    TABLE_AT,
    TEXT,
)
from profkit.readers.last_steps.read import Error, Header

_MAX_TEXT: Final = 32 << 10
_MAX_CALLS: Final = 100
_MAX_ERROR: Final = STEPS.start - ERROR_AT - BLOCK.size
_MAX_HEADER: Final = ERROR_AT - HEADER_AT - BLOCK.size


class LastStepsFile:
    """A file of last steps of this process.

    Args:
        path: The file, whose folder is created if needed.

    Raises:
        OSError: It cannot be created, or the disk has no room for it.
    """

    def __init__(self, path: Path, header: Header) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _reserve(descriptor)
            with contextlib.suppress(OSError, ImportError):
                import fcntl

                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._bytes = mmap.mmap(descriptor, SIZE)
        except (OSError, ValueError):
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._descriptor = descriptor
        self._n_steps = self._n_memory = self._n_stacks = self._n_texts = 0
        self._half, self._next_text = 0, TABLE_AT
        self._texts: dict[str, tuple[int, int]] = {}
        self._threads: dict[int, _Stack] = {}
        text = _fitting(header)
        self._write_block(HEADER_AT, text)
        self._bytes[: len(MAGIC)] = MAGIC

    def step(self, end_ns: int, waited_ns: int) -> None:
        """A step has ended.

        Args:
            end_ns: Nanoseconds since 1970.
            waited_ns: How long the program has waited for data so far.
        """
        self._n_steps = number = self._n_steps + 1
        STEPS.record.pack_into(self._bytes, STEPS.at(number), number, end_ns, waited_ns, number)

    def restart_steps(self) -> None:
        """The steps so far were none."""
        self._bytes[STEPS.start : STEPS.end] = bytes(STEPS.end - STEPS.start)
        self._n_steps = 0

    def memory(self, time_ns: int, host: int, allocated: int, reserved: int) -> None:
        """Memory at a time; sizes of -1 are not known."""
        self._n_memory = number = self._n_memory + 1
        MEMORY.record.pack_into(
            self._bytes, MEMORY.at(number), number, time_ns, host, allocated, reserved, number
        )

    def stack(self, thread: int, name: str, calls: Calls, time_ns: int) -> None:
        """A thread has a stack at the time of a sample; one that it had before goes on."""
        known = self._threads.get(thread)
        if known is None or known.calls != calls or known.name != name:
            known = self._threads[thread] = _Stack(name, calls, time_ns)
        known.n_samples += 1
        if not known.number or known.number <= self._n_stacks - STACKS.size // 2:
            self._n_stacks = known.number = self._n_stacks + 1
        if known.half != self._half:
            known.texts = *self._text(name), *self._text(_text_of(calls))
            known.half = self._half
        number = known.number
        STACKS.record.pack_into(
            self._bytes, STACKS.at(number),
            number, thread, known.first_ns, time_ns, known.n_samples, *known.texts, number,
        )  # fmt: skip

    def threads_are(self, threads: Sequence[int]) -> None:
        """Forget the threads that have ended."""
        for ended in self._threads.keys() - set(threads):
            del self._threads[ended]

    def error(self, error: Error) -> None:
        """What ends the program."""
        text = msgspec.json.encode(error)
        while len(text) > _MAX_ERROR:
            error.calls = error.calls[len(error.calls) // 2 + 1 :]
            error.message = error.message[: len(error.message) // 2]
            error.type = error.type[:100]
            text = msgspec.json.encode(error)
        self._write_block(ERROR_AT, text)

    def close(self, *, remove: bool) -> None:
        """End writing."""
        self._bytes.close()
        os.close(self._descriptor)
        if remove:
            self.path.unlink(missing_ok=True)

    def _text(self, text: str) -> tuple[int, int]:
        """Offset and serial number of a text, which is written once in each half."""
        known = self._texts.get(text)
        if known is not None:
            return known
        encoded = text.encode("utf-8", "replace")[-_MAX_TEXT:]
        if self._next_text + TEXT.size + len(encoded) > TABLE_AT + (self._half % 2 + 1) * HALF:
            # What the other half has is written over. What lasts is written again, by the next
            # sample of each thread.
            self._half += 1
            self._next_text = TABLE_AT + self._half % 2 * HALF
            self._texts.clear()
        start, place = self._next_text, self._next_text + TEXT.size
        self._n_texts = serial = (self._n_texts + 1) & 0xFFFFFFFF
        self._bytes[place : place + len(encoded)] = encoded
        TEXT.pack_into(self._bytes, start, len(encoded), serial, zlib.crc32(encoded))
        self._next_text = place + len(encoded)
        self._texts[text] = start, serial
        return start, serial

    def _write_block(self, start: int, text: bytes) -> None:
        place = start + BLOCK.size
        self._bytes[place : place + len(text)] = text
        BLOCK.pack_into(self._bytes, start, len(text), zlib.crc32(text))


class _Stack:
    """The stack that a thread has, and its record."""

    def __init__(self, name: str, calls: Calls, first_ns: int) -> None:
        self.name = name
        self.calls = calls
        self.first_ns = first_ns
        self.number = self.n_samples = 0
        self.half = -1
        self.texts: tuple[int, ...] = ()


def _reserve(descriptor: int) -> None:
    """Have the disk's space: a page without any would end the program with SIGBUS.

    Raises:
        OSError: There is too little.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, SIZE)
    elif os.write(descriptor, bytes(SIZE)) < SIZE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _text_of(calls: Calls) -> str:
    inner = calls[-_MAX_CALLS:]
    return LINES.join(PARTS.join((file, str(line), function)) for file, line, function in inner)


def _fitting(header: Header) -> bytes:
    """The header as JSON, with as much of the command line as there is room for."""
    text = msgspec.json.encode(header)
    while len(text) > _MAX_HEADER and header.argv:
        header.argv = [each[:200] for each in header.argv[: len(header.argv) // 2]]
        text = msgspec.json.encode(header)
    return text
