"""Unpickles plain data only: numbers, text, lists, tuples and dictionaries.

A pickle is a program that can call any function of any module by its name. Here every way to name
one is refused, so that there is nothing to call. A pickle can also declare sizes that exceed the
machine's memory. It is therefore unpickled in a process of its own
(:mod:`profkit.readers.snapshot.worker`), whose memory limit grows with the bytes that were read.
"""

import contextlib
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

BUFFER_BYTES: Final = 1 << 17
"""A small buffer: the unpickler copies everything buffered for each frame of 64 KiB."""
_BYTES_PER_BYTE: Final = 32
"""A snapshot takes six to twelve times the memory of its pickle."""
_BASE_BYTES: Final = 1 << 30
"""Memory that does not depend on the pickle's size."""


class Refused(Exception):  # noqa: N818  (raised to the user as RefusedPickleError)
    """The pickle names something other than plain data; the message says what."""


class Broken(Exception):  # noqa: N818  (raised to the user as DamagedFileError)
    """The pickle cannot be read to its end; the message says why."""


def plain_data(raw: BinaryIO, allow: Callable[[int], None]) -> tuple[Any, int]:
    """Unpickle plain data.

    Args:
        raw: The pickle's bytes.
        allow: Called before each read with the bytes of memory that the process may use.

    Returns:
        The data, and the number of bytes read.

    Raises:
        Refused: It names a class, a function or an external object.
        Broken: It is invalid, truncated, or declares sizes that fill the memory.
    """
    counted = _CountedReads(raw, allow)
    try:
        data = _PlainUnpickler(io.BufferedReader(counted, BUFFER_BYTES)).load()
    except MemoryError:
        raise Broken("needs more memory than its size allows") from None
    except EOFError:
        raise Broken("is truncated") from None
    except RecursionError:
        raise Broken("is nested too deeply") from None
    except ValueError as error:
        if "extension code" in str(error):
            raise Refused(f"an {str(error)[str(error).index('extension code') :]}") from None
        raise Broken("is a broken pickle") from None
    except (pickle.UnpicklingError, TypeError, AttributeError, LookupError, OverflowError) as error:
        reason = "is truncated" if "truncated" in str(error) else "is a broken pickle"
        raise Broken(reason) from None
    return data, counted.n_bytes


class _PlainUnpickler(pickle.Unpickler):
    """Refuses everything that is not plain data."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse a class or a function, also by extension code."""
        raise Refused(f"{module}.{name}")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse an object that is stored outside of the pickle."""
        name = pid if isinstance(pid, str | int) else type(pid).__name__
        raise Refused(f"an external object ({name!s:.80})")


class _CountedReads(io.RawIOBase):
    """Counts the bytes read and raises the memory limit accordingly."""

    def __init__(self, raw: BinaryIO, allow: Callable[[int], None]) -> None:
        self._raw = raw
        self._allow = allow
        self.n_bytes = 0

    def readable(self) -> bool:
        """Return True, which ``BufferedReader`` requires."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401  (anything with a buffer)
        """Read some bytes."""
        n_bytes: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self.n_bytes += n_bytes
        self._allow(_BASE_BYTES + _BYTES_PER_BYTE * self.n_bytes)
        return n_bytes


class MemoryLimit:
    """Limits this process's address space, relative to its current size.

    Only Linux enforces it; elsewhere an allocation that is too large fails later.

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
        """Set the limit to this many bytes above the size at the start."""
        if self._base_bytes is None:
            return
        import resource  # noqa: PLC0415

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = self._base_bytes + n_bytes
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
