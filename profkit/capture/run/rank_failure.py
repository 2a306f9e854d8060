"""Why the program of a rank ended early, and which failure has ended the job.

When one rank fails, the others fail too: a collective loses its peer, and the launcher sends
SIGTERM. The rank whose failure nothing explains is the cause.
"""

import sys
from collections.abc import Mapping, Sequence
from traceback import walk_tb
from typing import Any, Final

from profkit.dataclass import dataclass, replace
from profkit.model.flight_record import RankFailure

_MAX_TEXT: Final = 200
_OF_A_PEER: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)
"""What gloo, NCCL and the store say in a rank when another one is gone."""
_FROM_OUTSIDE: Final = ("SIGTERM", "KeyboardInterrupt")


@dataclass(frozen=True)
class Failure:
    """Why a program ended early.

    Attributes:
        at_ns: Nanoseconds since 1970.
        exception: The type of the exception that it raised, or empty.
        message: The first line of the exception's text, or empty.
        file: The innermost file of the program that is on the exception's stack, or empty.
        line: The line there, or 0.
        exit_code: The code with which it exited by itself, or None.
        signal: The name of the signal that ended it, or empty.
        after: The ranks that had failed or died before.
    """

    at_ns: int
    exception: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    exit_code: int | None = None
    signal: str = ""
    after: tuple[int, ...] = ()

    @classmethod
    def parse(cls, written: Mapping[str, Any]) -> "Failure":
        """Read a failure from JSON.

        Raises:
            TypeError: If it is another object.
            KeyError: If it is another object.
        """
        return cls(**{**written, "after": tuple(map(int, written["after"]))})

    @property
    def is_consequence(self) -> bool:
        """Return whether another rank or somebody outside has caused it."""
        is_of_peer = any(text in self.message for text in _OF_A_PEER)
        return bool(self.after) or is_of_peer or (self.signal or self.exception) in _FROM_OUTSIDE

    @property
    def text(self) -> str:
        """Return the failure as what a rank has done: a verb, what, and where."""
        return self.what + (f" ({self.file}:{self.line})" if self.file else "")

    @property
    def what(self) -> str:
        """Return what a rank has done, without the line."""
        if self.signal:
            return f"was ended by {self.signal}"
        if self.exit_code is not None:
            reason = f": {self.message}" if self.message else ""
            return f"exited with code {self.exit_code}{reason}"
        what = f"{self.exception}: {self.message}" if self.message else self.exception
        return f"raised {what}"

    def to_model(self) -> RankFailure:
        """Return what a recording says of it."""
        return RankFailure(
            self.at_ns,
            self.what,
            self.file,
            self.line,
            is_consequence=self.is_consequence,
        )


def failure_of_exception(error: BaseException | None, at_ns: int) -> Failure | None:
    """Return the failure that an exception is at the end of a program; None for a good end.

    Args:
        error: The exception that the program raised, or None.
        at_ns: Nanoseconds since 1970.
    """
    if error is None:
        return None
    if isinstance(error, SystemExit):
        exit_ = _failure_of_exit(error.code, at_ns)
        file, line = ("", 0) if exit_ is None else _place(error)
        return None if exit_ is None else replace(exit_, file=file, line=line)

    file, line = _place(error)
    return Failure(at_ns, type(error).__name__, _first_line(error), file, line)


def _failure_of_exit(code: object, at_ns: int) -> Failure | None:
    """Return the failure that ``sys.exit`` with this code is, or None.

    Python exits with 1 if the code is not a number, and prints it.
    """
    if code is None or code == 0:
        return None
    if isinstance(code, int):
        return Failure(at_ns, exit_code=code)
    return Failure(at_ns, exit_code=1, message=_first_line(code))


def _first_line(value: object) -> str:
    """Return the first line of an object's text, which is the program's and may fail."""
    try:
        lines = str(value).strip().splitlines()
    except Exception:  # noqa: BLE001  (see above)
        return ""
    return lines[0][:_MAX_TEXT] if lines else ""


def _place(error: BaseException) -> tuple[str, int]:
    """Return the innermost line of the program's own code on an exception's stack."""
    frames = walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    if "torch" in sys.modules:  # or else it would be imported, to know its folder
        from profkit.capture.source.user_code import UserCode

        code = UserCode()
        places = [place for place in places if code.is_user_file(place[0])]
    return places[-1] if places else ("", 0)


def find_causes(
    failures: Mapping[int, Failure], died: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Find the ranks whose failure has ended the job.

    Args:
        failures: Those of the ranks that have said why they ended early.
        died: The ranks whose process is gone and that have said nothing.

    Returns:
        Of the ranks that failed, those that failed by themselves, the first one first; of the ranks
        that died, those whose death nothing explains.
    """
    independent = [rank for rank, failure in failures.items() if not failure.is_consequence]
    if independent:
        # Who fails last of all has its peers killed, and its launcher kills who does not end.
        return sorted(independent, key=lambda rank: failures[rank].at_ns), []
    if died:
        return [], list(died)

    # All are consequences, as of Ctrl-C: the first one is the nearest to the cause.
    return sorted(failures, key=lambda rank: failures[rank].at_ns)[:1], []
