"""Starts processes that read a part of a file, and write what they read to their stdout.

They are started as programs, not forked: a fork of a program that uses torch may hang, and
multiprocessing's spawn would run the user's script again. No slow module is imported here.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

_WITHOUT_WORKING_FOLDER: Final = "import sys; '' in sys.path and sys.path.remove(''); "
"""``python -c`` imports from the working folder first, where a user's ``queue.py`` may be."""


def start(
    code: str,
    *arguments: str,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    pipe_bytes: int = -1,
    start_new_session: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start this Python with some code of the package.

    Args:
        code: Python statements that import what they run.
        arguments: The arguments of the program, in ``sys.argv``.
        stdin: A file, or ``subprocess.PIPE``.
        pipe_bytes: Capacity of the pipes; -1 leaves it to the system.
        start_new_session: Keep Ctrl-C of a terminal from reaching the process.
    """
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    return subprocess.Popen(  # noqa: S603  (our own module, by our own interpreter)
        [sys.executable, "-c", _WITHOUT_WORKING_FOLDER + code, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        pipesize=pipe_bytes,
        start_new_session=start_new_session,
    )
