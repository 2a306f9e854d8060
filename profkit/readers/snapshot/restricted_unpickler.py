"""Unpickle plain data: numbers, text, lists, tuples and dictionaries, and nothing else.

A pickle is a program. What makes it dangerous is that it can name any function of any module and
have it called; here every way to name one is refused, so there is nothing that it could call.
It can also claim to hold more than there is memory for. So it is unpickled in a process of its
own (:mod:`profkit.readers.snapshot.worker`), whose memory grows with the bytes that came, and not with
what they claim.
"""

import contextlib
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

BUFFER_BYTES: Final = 1 << 17
"""As far as the unpickler looks ahead: it copies all that is buffered for each frame of 64 KiB."""
_BYTES_PER_BYTE: Final = 32
"""What a snapshot becomes in memory is six to twelve times its pickle."""
_ROOM_BYTES: Final = 1 << 30
"""For what does not grow with the pickle."""


class Refused(Exception):  # noqa: N818  (it becomes a RefusedPickleError where errors are told)
    """The pickle names something that is no plain data; the message says what."""


class Broken(Exception):  # noqa: N818  (it becomes a DamagedFileError where errors are told)
    """The pickle cannot be read to its end; the message says why."""


def plain_data(raw: BinaryIO, allow: Callable[[int], None]) -> tuple[Any, int]:
    """Unpickle plain data.

    Args:
        raw: The pickle's bytes.
        allow: Is told how many bytes of memory what has been read so far may take.

    Returns:
        The data, and how many bytes were read.

    Raises:
        Refused: It names a class, a function or an object outside of it.
        Broken: It is broken, cut off or made to fill memory.
    """
    counted = _Counted(raw, allow)
    try:
        data = _PlainUnpickler(io.BufferedReader(counted, BUFFER_BYTES)).load()
    except MemoryError:
        raise Broken("claims to hold more than its size allows") from None
    except EOFError:
        raise Broken("is cut off") from None
    except RecursionError:
        raise Broken("is nested too deeply") from None
    except ValueError as error:
        if "extension code" in str(error):
            raise Refused(f"an {str(error)[str(error).index('extension code') :]}") from None
        raise Broken("is a broken pickle") from None
    except (pickle.UnpicklingError, TypeError, AttributeError, LookupError, OverflowError) as error:
        said = "is cut off" if "truncated" in str(error) else "is a broken pickle"
        raise Broken(said) from None
    return data, counted.n_bytes


class _PlainUnpickler(pickle.Unpickler):
    """Refuses whatever is not plain data."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse a class or a function. Extension codes come here too."""
        raise Refused(f"{module}.{name}")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse an object that is kept outside of the pickle."""
        said = pid if isinstance(pid, str | int) else type(pid).__name__
        raise Refused(f"an object outside of it ({said!s:.80})")


class _Counted(io.RawIOBase):
    """Bytes that are counted, and that memory may grow with."""

    def __init__(self, raw: BinaryIO, allow: Callable[[int], None]) -> None:
        self._raw = raw
        self._allow = allow
        self.n_bytes = 0

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401  (anything with a buffer)
        """Read some bytes."""
        n_bytes: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self.n_bytes += n_bytes
        self._allow(_ROOM_BYTES + _BYTES_PER_BYTE * self.n_bytes)
        return n_bytes


class MemoryLimit:
    """How large this process may become, beyond what it is now.

    Only Linux keeps to it; elsewhere what asks for more than there is fails by itself, later.

    Source: setrlimit(2) (``RLIMIT_AS``), proc_pid_statm(5).
    """

    def __init__(self) -> None:
        self._base_bytes: int | None = None
        if sys.platform.startswith("linux"):
            with contextlib.suppress(OSError, ValueError):
                import resource  # noqa: PLC0415  (Unix alone has it)

                pages = int(Path("/proc/self/statm").read_text().split()[0])
                self._base_bytes = pages * resource.getpagesize()

    def allow(self, n_bytes: int) -> None:
        """Let the process grow by so many bytes since it began."""
        if self._base_bytes is None:
            return
        import resource  # noqa: PLC0415

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = self._base_bytes + n_bytes
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
