"""Everything profkit raises, in one tree.

::

    ProfkitError                 exit code
    ├── UsageError                       2   an argument that cannot be used
    ├── LoadError                        3   a file that cannot be read
    │   ├── MissingFileError                 it is not there
    │   ├── UnreadableFileError              the system refuses to read it
    │   ├── NotATraceError                   it is something else
    │   │   └── SeveralTracesError           it holds several traces
    │   ├── DamagedFileError                 it is a trace, but broken beyond reading
    │   ├── RefusedPickleError               it is a pickle that names code
    │   └── TooLargeError                    it is larger than allowed
    ├── CaptureError                     4   recording is not possible
    ├── GuardError                       4   the program does what a guard forbids
    │   └── LeakError                        its memory grows with every step
    ├── OutputError                      5   a result cannot be written
    ├── PluginError                      6   a third party's rule or renderer is wrong
    └── InternalError                   70   a bug in profkit

Every error carries one sentence of what happened, naming the path or the value, and a ``hint``
of what to do about it. The library raises them; only ``profkit.cli`` prints them and exits.
"""

from collections.abc import Sequence
from typing import ClassVar


class ProfkitError(Exception):
    """The root of the tree.

    Args:
        message: One sentence of what happened, with the path or the value.
        hint: What the reader can do about it; empty when there is nothing.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(ProfkitError):
    """An argument, an option or an environment variable that cannot be used."""

    exit_code = 2


class LoadError(ProfkitError):
    """A file that cannot be read as what it was given for."""

    exit_code = 3


class MissingFileError(LoadError):
    """There is no such file or folder."""


class UnreadableFileError(LoadError):
    """The operating system refuses to read the file, or it is no regular file."""


class NotATraceError(LoadError):
    """The file is readable and is something else than a profiler trace."""


class SeveralTracesError(NotATraceError):
    """The file or folder holds several traces or snapshots, and one was asked for.

    Args:
        message: What happened, with the path.
        hint: What to do.
        members: Each of them, as :func:`profkit.load` takes it.
    """

    def __init__(self, message: str, hint: str, members: Sequence[str]) -> None:
        super().__init__(message, hint)
        self.members = tuple(members)


class DamagedFileError(LoadError):
    """The file is a profiler trace, but too broken to be read."""


class RefusedPickleError(LoadError):
    """The file is a pickle that is more than plain data; nothing of it was run."""


class TooLargeError(LoadError):
    """The file, or an event in it, is larger than allowed."""


class CaptureError(ProfkitError):
    """Recording cannot start or stop. Inside a user's program this becomes a warning."""

    exit_code = 4


class GuardError(ProfkitError):
    """The program does what a guard around it forbids."""

    exit_code = 4


class LeakError(GuardError):
    """Memory grows with every step within ``profkit.no_leak``.

    Args:
        message: What grows most, the line that makes it, and who holds it.
        hint: What else grows.
        leaks: All that grows, as :class:`profkit.model.live_memory.Leak`, the most bytes first.
    """

    def __init__(self, message: str, hint: str = "", leaks: tuple[object, ...] = ()) -> None:
        super().__init__(message, hint)
        self.leaks = leaks


class HostSyncError(GuardError):
    """The host waits for a device within ``profkit.no_sync``.

    Args:
        message: What waits, and the line.
        hint: What to do instead.
        lines: All lines that waited so far, as :class:`profkit.model.live_memory.SyncSite`.
    """

    def __init__(self, message: str, hint: str = "", lines: tuple[object, ...] = ()) -> None:
        super().__init__(message, hint)
        self.lines = lines


class OutputError(ProfkitError):
    """A result cannot be written: no permission, no space, or a file already there."""

    exit_code = 5


class PluginError(ProfkitError):
    """A rule or a renderer of a third party does not keep its contract."""

    exit_code = 6


class InternalError(ProfkitError):
    """A bug in profkit."""

    exit_code = 70
