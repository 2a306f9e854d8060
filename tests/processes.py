"""Programs that a test starts, each in a process of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import profkit

LIMIT_S = 120
"""A program that takes longer hangs."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code (negative for a signal), its output and its errors."""

    code: int
    out: str
    err: str


def start(folder: Path, *command: str, **environment: str) -> Ended:
    """Run this Python with some arguments, in a folder, until it ends.

    Args:
        folder: The working folder; the package is that of the checkout.
        command: A script, or ``-m`` and a module, with its arguments.
        environment: Variables besides those of the test.
    """
    process = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(profkit.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )
    return Ended(process.returncode, process.stdout, process.stderr)
