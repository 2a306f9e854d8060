"""Unpickles plain data only: numbers, text, lists, tuples and dictionaries.

A pickle is a program that can call any function of any module by its name. Here every way to name
a function is refused, so that none can be called. A pickle can also declare sizes that exceed the
machine's memory, or keys whose hashes take years. It is therefore unpickled in a separate process
(:mod:`profkit.readers.snapshot.worker`), whose limits of memory and processor time grow with the
bytes that were read.
"""

import contextlib
import io
import math
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

BUFFER_BYTES: Final = 1 << 17
"""A small buffer: the unpickler copies everything buffered for each frame of 64 KiB."""
_BYTES_PER_BYTE: Final = 32
"""A snapshot takes six to twelve times the memory of its pickle."""
_BASE_BYTES: Final = 1 << 30
"""Memory that does not depend on the pickle's size."""
_BYTES_PER_S: Final = 2 << 20
"""Bytes that a slow machine unpickles and converts in a second; most take a tenth of it."""
_BASE_S: Final = 5
"""Processor time that does not depend on the pickle's size."""


class Refused(Exception):  # noqa: N818  (raised to the user as RefusedPickleError)
    """The pickle names something other than plain data, which the message names."""


class Broken(Exception):  # noqa: N818  (raised to the user as DamagedFileError)
    """The pickle cannot be read to its end; the message says why."""


def load_plain(raw: BinaryIO, allow: Callable[[int], None]) -> tuple[Any, int]:
    """Unpickle plain data.

    Args:
        raw: The pickle's bytes.
        allow: Called after each read with the number of bytes read so far.

    Returns:
        The data, and the number of bytes read.

    Raises:
        Refused: It names a class, a function or an external object.
        Broken: It is invalid, truncated, or declares sizes that fill the memory.
    """
    counted = _CountedReads(raw, allow)

    # Which error damage raises depends on the opcode that meets it.
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
    """Counts the bytes read and raises the limits accordingly."""

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
        self._allow(self.n_bytes)
        return n_bytes


class ProcessLimits:
    """Limits this process's address space and processor time, on top of the use at its start.

    Only Linux enforces the first, and Unix the second, with a signal that ends the process. On
    other systems an allocation that is too large fails later.

    Source: setrlimit(2) (``RLIMIT_AS``, ``RLIMIT_CPU``), proc_pid_statm(5).
    """

    def __init__(self) -> None:
        self._base_bytes: int | None = None
        self._base_s = math.ceil(time.process_time())
        if sys.platform.startswith("linux"):
            with contextlib.suppress(OSError, ValueError):
                import resource  # noqa: PLC0415  (Unix alone has it)

                pages = int(Path("/proc/self/statm").read_text().split()[0])
                self._base_bytes = pages * resource.getpagesize()

    def allow(self, n_read: int) -> None:
        """Set the limits for a pickle of this many bytes."""
        try:
            import resource  # noqa: PLC0415
        except ImportError:
            return

        seconds = self._base_s + _BASE_S + n_read // _BYTES_PER_S
        _set_limit(resource.RLIMIT_CPU, seconds)
        if self._base_bytes is not None:
            n_bytes = self._base_bytes + _BASE_BYTES + _BYTES_PER_BYTE * n_read
            _set_limit(resource.RLIMIT_AS, n_bytes)


def _set_limit(kind: int, limit: int) -> None:
    import resource  # noqa: PLC0415

    # The hard limit stays: a process cannot raise it again.
    _, hard = resource.getrlimit(kind)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (soft, hard))
