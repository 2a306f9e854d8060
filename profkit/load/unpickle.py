"""Read a pickle of plain data: numbers, text, lists, tuples and dictionaries, and nothing else.

A pickle is a program. What makes it dangerous is that it can name any function of any module and
have it called; here every way to name one is refused, so there is nothing that it could call.
"""

import copyreg
import pickle
from typing import Final, NoReturn

from profkit.errors import DamagedFileError, RefusedPickleError, TooLargeError
from profkit.load.garbage import without_garbage_collection
from profkit.load.unpack import Readable
from profkit.units import format_bytes

_PIECE_BYTES: Final = 1 << 20
_FRAME: Final = b"\x95"
_FRAME_N_BYTES: Final = 8
_LONG_BINPUT: Final = b"r"
_NUMBER_N_BYTES: Final = 4
_PUT: Final = b"p"


def plain_data(stream: Readable, name: str, limit_bytes: int) -> object:
    """Unpickle plain data.

    Args:
        stream: The pickle's bytes, unpacked.
        name: How to call the file in errors.
        limit_bytes: How long the pickle may be.

    Raises:
        RefusedPickleError: It names a class, a function or an object outside of it.
        TooLargeError: It is longer than allowed.
        DamagedFileError: It is broken, cut off or nested beyond reading.
    """
    # A code for a class is looked up in this cache before anybody is asked. It is only a cache:
    # without it, the class's name goes through `find_class`.
    copyreg.clear_extension_cache()
    try:
        with without_garbage_collection():
            return _PlainUnpickler(_Bytes(stream, name, limit_bytes), name).load()
    except (RefusedPickleError, TooLargeError):
        raise
    except RecursionError as error:
        raise _damaged(name, "is nested too deeply") from error
    except MemoryError as error:
        raise _damaged(name, "asks for more memory than there is") from error
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        OverflowError,
    ) as error:
        raise _damaged(name, "is a broken pickle") from error


class _PlainUnpickler(pickle.Unpickler):
    """Refuses whatever is not plain data."""

    def __init__(self, file: "_Bytes", name: str) -> None:
        super().__init__(file)
        self._name = name

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse a class or a function."""
        raise _refused(self._name, f"{module}.{name}")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse an object that is kept outside of the pickle."""
        raise _refused(self._name, f"an object outside of it ({str(pid)[:80]})")


class _Bytes:
    """The stream as the unpickler wants it: never asked at once for more than a piece.

    A pickle may claim that a text of a petabyte follows; a file asked for that much would first
    make room for it. It may likewise claim to have remembered four billion objects, and the
    unpickler makes room for them too; so frames are not handed over whole, each instruction
    passes here, and no object may have a number that the pickle is too short for.
    """

    def __init__(self, stream: Readable, name: str, limit_bytes: int) -> None:
        self._stream = stream
        self._name = name
        self._limit_bytes = limit_bytes
        self._n_bytes = 0
        self._buffer = b""
        self._at = 0
        self._last = b""

    def read(self, n: int, /) -> bytes:
        """Read n bytes, or fewer at the end."""
        # The byte before may also be a text's length, but then as many bytes are asked for: 149 or
        # 114, never the eight and four that follow these two instructions.
        last, self._last = self._last, b""
        piece = self._take(n)
        if n == 1:
            self._last = piece
        elif last == _FRAME and n == len(piece) == _FRAME_N_BYTES:
            # A frame of no bytes: its instructions are then asked for one by one.
            return bytes(n)
        elif last == _LONG_BINPUT and n == _NUMBER_N_BYTES:
            self._check_number(int.from_bytes(piece, "little"))
        return piece

    def _take(self, n: int) -> bytes:
        end = self._at + n
        if end <= len(self._buffer):
            piece = self._buffer[self._at : end]
            self._at = end
            return piece
        pieces = [self._buffer[self._at :]]
        missing = n - len(pieces[0])
        self._buffer, self._at = b"", 0
        while missing > 0 and self._fill():
            pieces.append(self._buffer[:missing])
            self._at = len(pieces[-1])
            missing -= self._at
        return b"".join(pieces)

    def readline(self) -> bytes:
        """Read to the end of a line, or of the file."""
        pieces = []
        while self._at < len(self._buffer) or self._fill():
            end = self._buffer.find(b"\n", self._at) + 1
            pieces.append(self._buffer[self._at : end or len(self._buffer)])
            self._at += len(pieces[-1])
            if end:
                break
        line = b"".join(pieces)
        if self._last == _PUT:
            self._check_number(int(line))
        self._last = b""
        return line

    def _check_number(self, number: int) -> None:
        if number > self._n_bytes:
            message = "an object's number is larger than the pickle"
            raise pickle.UnpicklingError(message)

    def _fill(self) -> bool:
        self._buffer, self._at = self._stream.read(_PIECE_BYTES), 0
        self._n_bytes += len(self._buffer)
        if self._n_bytes > self._limit_bytes:
            allowed = format_bytes(self._limit_bytes)
            raise TooLargeError(f"{self._name} unpacks to more than {allowed}.")
        return bool(self._buffer)


def _refused(name: str, what: str) -> RefusedPickleError:
    message = f"{name} is a pickle that names {what}; nothing of it was run."
    return RefusedPickleError(message, "Memory snapshots hold only plain data: do not trust it.")


def _damaged(name: str, what: str) -> DamagedFileError:
    return DamagedFileError(f"{name} {what}.", "Record the snapshot again.")
