"""Functions that tests call in other processes."""

import os
import signal
import sys
import time
from pathlib import Path

from profkit.errors import DamagedFileError, MissingFileError, SeveralTracesError

HERE = "tests.scale.functions"


def squared(number: int) -> tuple[int, int]:
    """Return the square, and the process that computed it; prints too."""
    print("printed", number)
    print("printed", number, file=sys.stderr)
    return number * number, os.getpid()


def refused(number: int) -> int:
    """Raise errors of several kinds."""
    if number == 0:
        raise DamagedFileError("It is damaged.", "Copy it.")
    if number == 1:
        raise SeveralTracesError("There are two.", "Give one.", ["a", "b"])
    return 1 // (number - 2)


def killed(path: str) -> str:
    """Kill the process, twice: count the calls in a file; without one return."""
    if not path:
        return "alive"
    with Path(path).open("a") as file:
        file.write("x")
    if len(Path(path).read_text()) <= int(path.rpartition("-")[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive at last"


def asleep(path: str) -> None:
    """Write the process and a child's to a file, and sleep."""
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(100)


def search_path(_: object) -> list[str]:
    """Where modules are imported from."""
    return sys.path


def missing(_: object) -> None:
    """Raise the error of a file that is not there."""
    raise MissingFileError("There is no file a.", "Did you mean b?")


def slowly(number: int) -> int:
    """Return a number after a while."""
    time.sleep(0.3)
    return number
