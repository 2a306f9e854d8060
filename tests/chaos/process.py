"""One run of a program in a process of its own, with signals, until it ends or hangs."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.treatments import Signals

_POLL_S: Final = 0.02
_DUMP_S: Final = 10.0
"""How long a hanging process has for the stacks of its threads, before it is killed."""


@dataclass(frozen=True)
class Sent:
    """A signal that was sent.

    Attributes:
        signum: Which.
        at_s: When, in seconds from the start of the process.
        n_printed: Bytes that the program had printed by then.
    """

    signum: signal.Signals
    at_s: float
    n_printed: int


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        code: Exit code, negative for a signal.
        out: Standard output.
        err: Standard error.
        wall_s: Seconds from its start to its end.
        cpu_s: Processor time of the process and of the children that it waited for.
        first_output_s: Seconds to its first output, or None without output.
        sent: The signals that it was sent.
        is_hung: Whether it was killed since it took too long.
    """

    code: int
    out: str
    err: str
    wall_s: float
    cpu_s: float = 0.0
    first_output_s: float | None = None
    sent: tuple[Sent, ...] = ()
    is_hung: bool = False


@dataclass
class _Run:
    """A process that runs."""

    process: subprocess.Popen[bytes]
    out: Path
    signals: Signals
    began_s: float = field(default_factory=time.monotonic)
    first_output_s: float | None = None
    sent: list[Sent] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def send_due(self) -> float:
        """Send the signals that are due, and return the seconds to the next look."""
        if self.first_output_s is None and self.out.stat().st_size:
            self.first_output_s = self.now_s
        origin_s = self.first_output_s if self.signals.after_output else 0.0
        if origin_s is None:
            return _POLL_S

        for after_s, signum in self.signals.times[len(self.sent) :]:
            wait_s = origin_s + after_s - self.now_s
            if wait_s > 0:
                return min(wait_s, _POLL_S)
            self.sent.append(Sent(signum, self.now_s, self.out.stat().st_size))
            # Nobody has waited for the process yet: its id is still its own. ``send_signal`` would
            # wait for one that has just ended, and take its status.
            os.kill(self.process.pid, signum)
        return _POLL_S


def run_process(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    limit_s: float,
    signals: Signals | None = None,
) -> Ended:
    """Run a command until it ends, and kill it if it takes too long.

    Args:
        command: What is run.
        folder: Its working folder, where ``out`` and ``err`` are written.
        environment: All of its variables.
        limit_s: Seconds after which it hangs: the stacks of its threads are written to ``err`` by
            :mod:`faulthandler`, which works while Python's own code does not.
        signals: What it is sent meanwhile.
    """
    out, err = folder / "out", folder / "err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
    run = _Run(process, out, signals or Signals())

    is_hung = False
    try:
        while (ended := _wait_once(process)) is None:
            pause_s = run.send_due()
            if run.now_s > limit_s:
                is_hung, ended = True, _end_hung(process)
                break
            time.sleep(pause_s)
    finally:
        wall_s = run.now_s
        # Its children too: the ranks of a job, the workers of a loader.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert ended is not None
    status, used = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ended(
        process.returncode,
        out.read_text(errors="replace"),
        err.read_text(errors="replace"),
        wall_s,
        used.ru_utime + used.ru_stime,
        run.first_output_s,
        tuple(run.sent),
        is_hung,
    )


def _wait_once(
    process: subprocess.Popen[bytes], options: int = os.WNOHANG
) -> tuple[int, Any] | None:
    """Return the wait status and usage of a process that has ended, or None."""
    pid, status, used = os.wait4(process.pid, options)
    return (status, used) if pid else None


def _end_hung(process: subprocess.Popen[bytes]) -> tuple[int, Any] | None:
    """Have a process write its stacks, and kill it."""
    os.kill(process.pid, signal.SIGCONT)
    os.kill(process.pid, signal.SIGABRT)
    until_s = time.monotonic() + _DUMP_S
    while time.monotonic() < until_s:
        if ended := _wait_once(process):
            return ended
        time.sleep(_POLL_S)
    os.kill(process.pid, signal.SIGKILL)
    return _wait_once(process, 0)
