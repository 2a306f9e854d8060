"""Runs programs in separate processes, one of which uses the GPU at a time."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.gpu.recording.gate import READY

START_S: Final = 180.0
"""How long a process may take to import torch."""
N_LAST: Final = 6
_TIMED: Final = re.compile(r"([\d.]+) ms per step over \d+ steps")


@dataclass(frozen=True)
class Ended:
    """How a program's run ended.

    Attributes:
        step_ms: The step time that it printed, in milliseconds, or None.
        failure: Empty, or the error and the last lines of the output.
        is_hung: Whether it exceeded the time limit.
    """

    step_ms: float | None
    failure: str = ""
    is_hung: bool = False


class Turns:
    """Runs programs; only one of them uses the GPU at a time.

    Args:
        timeout_s: Time limit of one run, in seconds from its start on the GPU.
        settings: Environment variables for all runs.
    """

    def __init__(self, timeout_s: float, settings: dict[str, str]) -> None:
        self._turn = threading.Lock()
        self._timeout_s = timeout_s
        self._settings = settings

    def run(
        self,
        program: Sequence[str],
        folder: Path,
        snapshot: Path | None = None,
        log: Path | None = None,
    ) -> Ended:
        """Run a program to its end.

        The next run may start as soon as this one's steps are timed: files and reports need no GPU.

        Args:
            program: A script or ``-m`` and a module, with its arguments.
            folder: Where it runs; it has a copy of ``examples/gpu``.
            snapshot: The file for a snapshot of CUDA memory, or None.
            log: The file for all that it prints, or None.
        """
        gate = str(folder / "examples" / "gpu" / "recording" / "gate.py")
        wanted = ["--snapshot", str(snapshot)] if snapshot is not None else []

        with subprocess.Popen(  # noqa: S603  (the programs of this folder)
            [sys.executable, "-u", gate, *wanted, *program],
            cwd=folder,
            env=self._settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            ended, written = self._follow(process, folder)

        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(written), encoding="utf-8")
        return ended

    def _follow(self, process: "subprocess.Popen[str]", folder: Path) -> tuple[Ended, list[str]]:
        assert process.stdin is not None  # noqa: S101  (both are pipes)
        assert process.stdout is not None  # noqa: S101

        written: list[str] = []
        with patience(process, START_S) as imports:
            for line in process.stdout:
                if line.strip() == READY:
                    break
                written.append(line)
        step_ms = None
        with self._turn, contextlib.ExitStack() as ending:
            runs = ending.enter_context(patience(process, self._timeout_s))
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.close()
            for line in process.stdout:
                written.append(line)
                timed = _TIMED.search(line)
                if timed is not None:
                    step_ms = float(timed[1])
                    break
            still_open = ending.pop_all()
        with still_open:
            written.extend(process.stdout)
            process.wait()
        last = "".join(written[-N_LAST:]).replace(str(folder), ".").strip()
        if imports.is_over:
            said = f"torch was not imported within {START_S:.0f} s"
        elif runs.is_over:
            said = f"stopped after {self._timeout_s:g} s"
        else:
            said = _how_it_ended(process.returncode)
        failure = f"{said}: {last}" if said and last else said
        return Ended(step_ms, failure, imports.is_over or runs.is_over), written


def _how_it_ended(code: int) -> str:
    """Return a short description of an exit code, empty for success."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


class _Patience:
    """Whether a process exceeded its time limit."""

    is_over = False


@contextlib.contextmanager
def patience(process: "subprocess.Popen[str]", seconds: float) -> Iterator[_Patience]:
    """End a process, and all that it started, if a block takes too long.

    Args:
        process: The leader of a session.
        seconds: The time limit.
    """
    state = _Patience()

    def give_up() -> None:
        state.is_over = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        yield state
    finally:
        timer.cancel()
