"""Programs that a test starts, each in a process of its own."""

import atexit
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import profkit

LIMIT_S = 120
"""A program that takes longer hangs."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code (negative for a signal), its output and its errors."""

    code: int
    out: str
    err: str


def let_interrupts_through() -> None:
    """Have the processes that this one starts take Ctrl-C as they do at a terminal.

    A shell without job control starts what it puts into the background with SIGINT ignored, which
    each process inherits, and Python then installs no handler for it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
        env=_variables(environment),
    )
    return Ended(process.returncode, process.stdout, process.stderr)


def start_forked(folder: Path, *command: str, **environment: str) -> Ended:
    """Run some arguments of Python as :func:`start` does, in a fork that has imported torch.

    That saves a program one to two seconds. A test of start-up, of imports or of what a library
    reads then needs :func:`start`; see :mod:`tests.fork_server`.

    Args:
        folder: The working folder; the package is that of the checkout.
        command: A script, or ``-m`` and a module, or ``-c`` and source, with its arguments.
        environment: Variables besides those of the test.

    Raises:
        ValueError: A variable is read at the start of Python or by an import.
    """
    variables = _variables(environment)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _forked(variables, out.fileno(), err.fileno()) as client:
            program = {"command": command, "folder": str(folder), "environment": variables}
            client.sendall(json.dumps(program).encode() + b"\n")
            code = _wait(client)
        return Ended(code, _text(out), _text(err))


_READ_EARLY: Final = (
    "KINETO", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH", "TORCH",
)  # fmt: skip
"""Beginnings of variables that Python reads when it starts, or torch when it is imported."""

_SET_BY_LIBRARIES: Final = frozenset({
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
})  # fmt: skip
"""Variables that torch leaves in a process that has asked for a GPU or compiled, and scikit-learn
in one that imports it: in that of the tests, and in no program that a user starts."""
_starting: Final = threading.Lock()
_servers: Final[list[tuple[socket.socket, Mapping[str, str]]]] = []
"""The one of this process, with its environment, once there is one."""


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program."""
    inherited = {name: value for name, value in os.environ.items() if name not in _SET_BY_LIBRARIES}
    folders = [str(Path(profkit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "OMP_NUM_THREADS": "1",
        **environment,
    }


def _forked(variables: Mapping[str, str], out: int, err: int) -> socket.socket:
    """Ask the server for a program; returns the socket that takes what it is to run."""
    with _starting:
        if not _servers:
            _servers.append((_start_server(variables), _read_early(variables)))
        server, inherited = _servers[0]
    if _read_early(variables) != inherited:
        differing = dict(_read_early(variables).items() ^ inherited.items())
        raise ValueError(f"The fork server has other values of {', '.join(differing)}.")
    client, theirs = socket.socketpair()
    with theirs, Path(os.devnull).open() as nothing:
        socket.send_fds(server, [b"."], [theirs.fileno(), nothing.fileno(), out, err])
    client.settimeout(LIMIT_S)
    return client


def _read_early(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_READ_EARLY)}


def _start_server(variables: Mapping[str, str]) -> socket.socket:
    """Start the server of this process, which ends with it."""
    ours, theirs = socket.socketpair()
    file = Path(__file__).with_name("fork_server.py")
    # A name in brackets is no user's file: its frames, the outermost of each program, are nobody's.
    source = f"exec(compile(open({str(file)!r}).read(), '<fork server>', 'exec'))"
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", source, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=variables,
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _wait(client: socket.socket) -> int:
    """Return the exit code of a program, or the negated signal; ends one that hangs."""
    with client.makefile("r") as received:
        pid = int(received.readline())
        try:
            return os.waitstatus_to_exitcode(int(received.readline()))
        except BaseException:
            os.killpg(pid, signal.SIGKILL)
            raise


def _text(file: IO[bytes]) -> str:
    """Return all that a program has written, with the line ends of text."""
    file.seek(0)
    return io.TextIOWrapper(file).read()
