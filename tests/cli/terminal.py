"""Runs a program on a pseudo-terminal and returns what it shows."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ESCAPE = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])")


@dataclass(frozen=True)
class TerminalResult:
    """The output of a program.

    Attributes:
        terminal: All that came to the terminal, with its escapes.
        stdout: What came to a pipe, where stdout was one.
        code: How it ended.
    """

    terminal: str
    stdout: str
    code: int

    @property
    def screen(self) -> list[str]:
        """Return the lines on the screen at the end."""
        return draw_screen(self.terminal)


def run_on_terminal(
    *command: str,
    columns: int = 80,
    piped_stdout: bool = False,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> TerminalResult:
    """Run a Python program with stderr, and by default stdout, on a pseudo-terminal.

    Args:
        *command: Arguments of Python.
        columns: How wide the terminal is.
        piped_stdout: Whether stdout is a pipe instead.
        env: What else stands in the environment.
        cwd: Where it runs.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {
        name: os.environ[name] for name in os.environ if name not in {"COLUMNS", "NO_COLOR"}
    }
    paths = os.pathsep.join((str(ROOT), *sys.path))
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if piped_stdout else theirs,
        stderr=theirs,
        env={**environment, "PYTHONPATH": paths, "TERM": "xterm-256color", **(env or {})},
        cwd=cwd,
    )
    os.close(theirs)
    chunks = []

    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)

    stdout = process.stdout.read().decode() if process.stdout else ""
    code = process.wait()
    if process.stdout:
        process.stdout.close()
    os.close(ours)
    return TerminalResult(b"".join(chunks).decode(), stdout, code)


def draw_screen(written: str) -> list[str]:
    """Draw the lines that a terminal shows, without trailing blanks.

    Args:
        written: Text with the escapes that a progress bar uses; others change no text.
    """
    lines, row, column, place = [""], 0, 0, 0
    while place < len(written):
        escape = _ESCAPE.match(written, place)
        char = written[place]
        place = escape.end() if escape else place + 1
        if escape:
            count = int(escape[2]) if escape[2].isdigit() else 1
            if escape[3] == "A":
                row = max(0, row - count)
            elif escape[3] == "K":
                lines[row] = "" if escape[2] == "2" else lines[row][:column]
        elif char == "\r":
            column = 0
        elif char == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1

    return [line.rstrip() for line in lines]
