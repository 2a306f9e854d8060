"""Reads files of last steps: the steps, stacks and memory of a program until its end.

A file is input like any other: records that are not as profkit writes them are left out.
"""

import sys
import zlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from profkit.errors import DamagedFileError, NotATraceError
from profkit.model.last_steps import (
    LastStep,
    ProcessEnd,
    ProcessMemory,
    ProgramError,
    ProgramState,
    ThreadStack,
)
from profkit.model.location import Frame
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
    SUFFIX,
    TABLE_AT,
    TEXT,
    BufferPlace,
)
from profkit.readers.stream import Place, open_plain

_MAX_NS: Final = 1 << 62
_MAX_FRAMES: Final = 1000
_N_FIELDS: Final = 3


class Header(msgspec.Struct):
    """The process that wrote the file, with the fields of :class:`ProcessEnd`."""

    name: str
    host: str
    pid: int
    rank: int | None
    world_size: int | None
    argv: list[str]
    torch: str | None
    began_ns: int


class Error(msgspec.Struct):
    """The end of the program, with the fields of :class:`ProgramError`."""

    state: ProgramState
    type: str
    message: str
    thread: str
    time_ns: int
    calls: list[tuple[str, int | None, str]] = []


def is_last_steps(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is a file of last steps."""
    return start.startswith(MAGIC)


def read_last_steps(place: Place) -> ProcessEnd:
    """Read the file of last steps of a process, which may be running.

    Raises:
        NotATraceError: It is another kind of file.
        DamagedFileError: It is incomplete.
        LoadError: It cannot be read.
    """
    with open_plain(place) as stream:
        data = b""
        while len(data) <= SIZE and (chunk := stream.read(SIZE)):
            data += chunk
    if not is_last_steps(data):
        raise NotATraceError(
            f"{place} is no record of last steps.", f"Give a file ending in {SUFFIX}."
        )

    header = _read_json(data, HEADER_AT, Header)
    if len(data) != SIZE or header is None:
        raise DamagedFileError(f"{place} is incomplete.", "Copy it again.")
    return _Reader(data, header, str(place)).read()


class _Reader:
    """Reads the bytes of one file."""

    def __init__(self, data: bytes, header: Header, path: str) -> None:
        self._data = data
        self._header = header
        self._path = path
        self._n_skipped = 0

    def read(self) -> ProcessEnd:
        """Read all parts of the file."""
        header = self._header
        error = _read_json(self._data, ERROR_AT, Error)
        steps = tuple(self._steps())

        # A process that was killed had no time to write its end.
        state: ProgramState = "running" if _is_locked(self._path) else "killed"
        return ProcessEnd(
            path=self._path,
            name=header.name,
            host=header.host,
            pid=header.pid,
            rank=header.rank,
            world_size=header.world_size,
            argv=tuple(header.argv),
            torch=header.torch,
            began_ns=header.began_ns,
            state=state if error is None else error.state,
            error=None if error is None or error.state == "ended" else _convert_error(error),
            n_steps=steps[-1].number if steps else 0,
            steps=steps,
            stacks=tuple(self._stacks()),
            memory=tuple(self._memory()),
            n_skipped=self._n_skipped,
        )

    def _records(self, buffer: BufferPlace) -> Iterator[tuple[int, ...]]:
        """Yield the complete records of a buffer, oldest first, without the number at their end."""
        part = self._data[buffer.start : buffer.end]
        records = []
        for place, record in enumerate(buffer.record.iter_unpack(part)):
            number = record[0]
            if number == record[-1] == 0:
                continue
            if number == record[-1] and 0 < number < _MAX_NS and number % buffer.size == place:
                records.append(record[:-1])
            else:
                self._n_skipped += 1

        # Places of records that were skipped may still have the records of the round before.
        records.sort()
        last = records[-1][0] if records else 0
        yield from (record for record in records if record[0] > last - buffer.size)

    def _steps(self) -> Iterator[LastStep]:
        previous: tuple[int, ...] | None = None
        for record in self._records(STEPS):
            number, end_ns, waited_ns = record
            if not self._is_time(end_ns) or not 0 <= waited_ns < _MAX_NS:
                self._n_skipped += 1
                continue

            # A step begins with the end of the step before it, if that was recorded.
            if previous is None or previous[0] != number - 1 or previous[1] > end_ns:
                yield LastStep(number, None, end_ns, None)
            else:
                wait_ns = min(max(0, waited_ns - previous[2]), end_ns - previous[1])
                yield LastStep(number, previous[1], end_ns, wait_ns)
            previous = record

    def _memory(self) -> Iterator[ProcessMemory]:
        for _, time_ns, *sizes in self._records(MEMORY):
            if self._is_time(time_ns):
                host, allocated, reserved = (size if size >= 0 else None for size in sizes)
                yield ProcessMemory(time_ns, host, allocated, reserved)

    def _stacks(self) -> Iterator[ThreadStack]:
        latest: dict[tuple[int, int], ThreadStack] = {}
        for _, thread, first_ns, last_ns, n, *texts in self._records(STACKS):
            if not (self._is_time(first_ns) and first_ns <= last_ns < _MAX_NS and n > 0):
                self._n_skipped += 1
                continue
            name, calls = self._text(*texts[:2]), self._text(*texts[2:])
            stack = ThreadStack(
                name or "a thread", thread, first_ns, last_ns, n, tuple(_frames(calls))
            )
            # A stack that lasts is written again before it is overwritten.
            latest[thread, first_ns] = stack
        yield from sorted(latest.values(), key=lambda stack: (stack.first_ns, stack.ident))

    def _is_time(self, ns: int) -> bool:
        return self._header.began_ns <= ns < _MAX_NS

    def _text(self, offset: int, serial: int) -> str:
        """Return a text of the table; empty if it was overwritten."""
        if not TABLE_AT <= offset <= SIZE - TEXT.size:
            return ""
        n_bytes, text_serial, checksum = TEXT.unpack_from(self._data, offset)
        start = offset + TEXT.size
        text = self._data[start : start + n_bytes]
        if text_serial != serial or n_bytes > HALF or zlib.crc32(text) != checksum:
            return ""
        return text.decode("utf-8", "replace")


def _read_json(data: bytes, start: int, kind: type[Any]) -> Any:  # noqa: ANN401  (of that type)
    """Read a block of JSON; None if it is empty or damaged."""
    if len(data) < start + BLOCK.size:
        return None
    n_bytes, checksum = BLOCK.unpack_from(data, start)
    text = data[start + BLOCK.size : start + BLOCK.size + n_bytes]
    if not n_bytes or zlib.crc32(text) != checksum:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _convert_error(error: Error) -> ProgramError:
    calls = tuple(Frame(file, line, function) for file, line, function in error.calls)
    return ProgramError(error.type, error.message, error.thread, error.time_ns, calls)


def _frames(text: str) -> Iterator[Frame]:
    for line in text.split(LINES)[:_MAX_FRAMES]:
        parts = line.split(PARTS)
        if len(parts) == _N_FIELDS:
            file, number, function = parts
            is_line = number.isascii() and number.isdigit() and 0 < len(number) < 10  # noqa: PLR2004
            yield Frame(file, int(number) if is_line else None, function)


def _is_locked(path: str) -> bool:
    """Return whether the process holds the lock on its file, which ends with the process."""
    if sys.platform == "win32":
        return False
    import fcntl  # noqa: PLC0415  (Windows has none)

    try:
        with open(path, "rb") as file:  # noqa: PTH123  (any text)
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except (OSError, ValueError):
        return False
    return False
