"""Runs commands with a time limit each, and keeps what they print."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

STACKS_S: Final = 2.0
"""How long a command that is stopped may take to print where its threads are."""


@dataclass(frozen=True)
class Command:
    """One command of a part.

    Attributes:
        name: The name of the files with its output.
        words: The program and its arguments.
        limit_s: Seconds after which it is stopped.
        settings: Environment variables beside those of all commands.
    """

    name: str
    words: Sequence[str]
    limit_s: float
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: The exit code, negative for a signal.
        seconds: How long it ran.
        is_late: Whether it was stopped because its time was over.
    """

    name: str
    words: Sequence[str]
    code: int
    seconds: float
    is_late: bool


class Runner:
    """Runs commands in one folder.

    Args:
        folder: Where they run.
        logs: The folder for their output: ``NAME.out`` and ``NAME.err`` for each.
        settings: Environment variables for all of them.
    """

    def __init__(self, folder: Path, logs: Path, settings: Mapping[str, str]) -> None:
        self._folder, self._logs, self._settings = folder, logs, settings
        self._ended: list[Ended] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, command: Command) -> "subprocess.Popen[bytes]":
        """Start a command, the leader of its own session."""
        with (
            (self._logs / f"{command.name}.out").open("wb") as out,
            (self._logs / f"{command.name}.err").open("wb") as err,
        ):
            return subprocess.Popen(  # noqa: S603  (the commands of this folder)
                command.words,
                cwd=self._folder,
                env={**self._settings, **command.settings},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def run(self, commands: Sequence[Command], ends_s: float) -> None:
        """Run commands at the same time, and wait for all of them.

        Args:
            commands: What is run.
            ends_s: The time, in seconds of ``time.monotonic()``, at which they are all stopped.
        """
        if time.monotonic() >= ends_s:
            for command in commands:
                print(f"  {command.name}: not run, its time is over", flush=True)
            return
        began_s = time.monotonic()
        started = [(command, self.start(command)) for command in commands]
        for command, process in started:
            self.wait(command, process, began_s, ends_s)

    def wait(
        self, command: Command, process: "subprocess.Popen[bytes]", began_s: float, ends_s: float
    ) -> None:
        """Wait for a command's end, or stop it, and write down how it ended."""
        left_s = min(began_s + command.limit_s, ends_s) - time.monotonic()
        is_late = False
        try:
            process.wait(max(0.0, left_s))
        except subprocess.TimeoutExpired:
            is_late = True
        stop(process, shows_stacks=is_late)
        seconds = time.monotonic() - began_s
        words = [str(word) for word in command.words]
        self._ended.append(Ended(command.name, words, process.returncode, seconds, is_late))
        listed = json.dumps([asdict(part) for part in self._ended], indent=1)
        (self._logs / "commands.json").write_text(listed + "\n", encoding="utf-8")
        how = "stopped" if is_late else f"exit code {process.returncode}"
        print(f"  {command.name}: {how} after {seconds:.1f} s", flush=True)


def stop(process: "subprocess.Popen[bytes]", *, shows_stacks: bool) -> None:
    """End a process and all that it started.

    Args:
        shows_stacks: Whether Python's fault handler prints where its threads are first.
    """
    with contextlib.suppress(ProcessLookupError):
        if shows_stacks:
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STACKS_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
