"""The errors of profkit.

::

    ProfkitError                 exit code
    ├── UsageError                       2   invalid argument or configuration
    ├── LoadError                        3   a file cannot be read
    │   ├── MissingFileError                 it does not exist
    │   ├── UnreadableFileError              the system refuses to read it
    │   ├── NotATraceError                   it is of another kind
    │   │   └── SeveralTracesError           it contains several traces
    │   ├── DamagedFileError                 it is too damaged to be read
    │   ├── RefusedPickleError               it is a pickle that names code
    │   ├── TooLargeError                    it exceeds the size limit
    │   └── LostProcessError                 the process that read it died
    ├── CaptureError                     4   recording cannot start or stop
    ├── GuardError                       4   the program violates a guard
    │   ├── LeakError                        memory grows with every step
    │   └── HostSyncError                    the host waits for a device
    ├── OutputError                      5   a result cannot be written
    ├── PluginError                      6   a plugin is broken
    └── InternalError                   70   a bug in profkit

Every error has one sentence that names the path or value, and a ``hint`` at the fix. The library
raises them; only ``profkit.cli`` prints them and exits.
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class ProfkitError(Exception):
    """Base class of all errors.

    Args:
        message: One sentence with the path or the value.
        hint: How to fix it; may be empty.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the class, so that every error can be sent between processes."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[ProfkitError], args: tuple[object, ...], state: dict[str, object]
) -> ProfkitError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(ProfkitError):
    """An argument, an option, a setting or an environment variable is invalid."""

    exit_code = 2


class LoadError(ProfkitError):
    """A file cannot be read, or is of another kind."""

    exit_code = 3


class MissingFileError(LoadError):
    """There is no such file or folder."""


class UnreadableFileError(LoadError):
    """The operating system refuses to read the file, or it is not a regular file."""


class NotATraceError(LoadError):
    """The file is readable, but not a recording."""


class SeveralTracesError(NotATraceError):
    """A folder or archive contains several recordings where one is expected.

    Args:
        members: Their paths, as :func:`profkit.load` accepts them.
    """

    def __init__(self, message: str, hint: str, members: Sequence[str]) -> None:
        super().__init__(message, hint)
        self.members = tuple(members)


class DamagedFileError(LoadError):
    """The file is a recording, but too damaged to be read."""


class RefusedPickleError(LoadError):
    """The file is a pickle that contains more than plain data; no code of it was run."""


class TooLargeError(LoadError):
    """The file, or an event in it, exceeds the size limit."""


class LostProcessError(LoadError):
    """The process or the worker that read the file died."""


class CaptureError(ProfkitError):
    """Recording cannot start or stop. Inside a user's program this becomes a warning."""

    exit_code = 4


class GuardError(ProfkitError):
    """The program violates a guard, such as ``profkit.no_leak``."""

    exit_code = 4


class LeakError(GuardError):
    """Memory grows with every step within ``profkit.no_leak``.

    Args:
        message: The largest leak with its allocation site and holder.
        hint: The other leaks.
        leaks: All leaks, as :class:`profkit.model.live_memory.Leak`, largest first.
    """

    def __init__(self, message: str, hint: str = "", leaks: tuple[object, ...] = ()) -> None:
        super().__init__(message, hint)
        self.leaks = leaks


class HostSyncError(GuardError):
    """The host waits for a device within ``profkit.no_sync``.

    Args:
        message: The operation and its source line.
        hint: What to use instead.
        lines: All syncs so far, as :class:`profkit.model.live_memory.SyncSite`.
    """

    def __init__(self, message: str, hint: str = "", lines: tuple[object, ...] = ()) -> None:
        super().__init__(message, hint)
        self.lines = lines


class OutputError(ProfkitError):
    """A result cannot be written: no permission, no space, or the file exists."""

    exit_code = 5


class PluginError(ProfkitError):
    """A rule or a renderer of another package cannot be used."""

    exit_code = 6


class InternalError(ProfkitError):
    """A bug in profkit."""

    exit_code = 70
