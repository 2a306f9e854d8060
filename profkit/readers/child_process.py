"""Starts processes that read a part of a file, and write what they read to their stdout.

They are started as programs, not forked: a fork of a program that uses torch may hang, and
multiprocessing's spawn would run the user's script again. Nothing heavy is imported here.
"""

import os
import subprocess
import sys
from typing import IO


def start(
    code: str, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL, pipe_bytes: int = -1
) -> "subprocess.Popen[bytes]":
    """Start this Python with some code of the package.

    Args:
        code: Python statements that import what they run.
        arguments: Those of the program, in ``sys.argv``.
        stdin: A file, or ``subprocess.PIPE``.
        pipe_bytes: Capacity of the pipes; -1 leaves it to the system.
    """
    return subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
        [sys.executable, "-c", code, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pipesize=pipe_bytes,
    )
