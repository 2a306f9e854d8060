"""Where a running program listens, and how it is asked: used by both sides; torch is not needed.

Each process that listens writes a file ``.listen-HOST-PID`` with mode 0600 into the folder of its
run. It names a Unix socket with mode 0600 in a folder with mode 0700 in the temporary folder: many
file systems that machines share have no sockets, and a socket's path has at most 104 characters.
Messages are lines of JSON.
"""

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from profkit.capture.process.launch import is_alive
from profkit.dataclass import dataclass

Message = dict[str, Any]

PREFIX: Final = ".listen-"
FOLDER_PREFIX: Final = "profkit-"
"""Start of the name of the folder that holds a socket."""
_CHUNK: Final = 1 << 16
"""Bytes that are received at once. Stacks of many threads take several chunks."""
_CONNECT_LIMIT_S: Final = 1.0
"""A process of this machine accepts at once, unless it is stopped or its queue is full."""


@dataclass(frozen=True)
class Endpoint:
    """A process that listens.

    Attributes:
        job: What the ranks of one job have in common, and no other program.
        host: Its machine.
        socket: The path of its socket there.
        began_ns: Nanoseconds since 1970 when it began to listen.
    """

    job: str
    host: str
    pid: int
    socket: str
    began_ns: int

    @property
    def is_here(self) -> bool:
        """Tell whether it is a process of this machine."""
        return self.host == socket.gethostname()

    @property
    def has_died(self) -> bool:
        """Tell whether its process is gone, as far as this machine knows.

        Another one may have got its number; nobody listens on its socket then.
        """
        return self.is_here and not (is_alive(self.pid) and _is_listened_on(self.socket))

    def write(self, folder: Path) -> Path:
        """Write its file, and remove the files of processes of this machine that are gone.

        Raises:
            OSError: It cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for old_path, endpoint in read_endpoints(folder):
            if endpoint.has_died:
                old_path.unlink(missing_ok=True)
                remove_socket(endpoint.socket)

        # Others never read half a file, nor one that everybody may read.
        path = folder / f"{PREFIX}{self.host}-{self.pid}"
        partial = path.with_name(f"{path.name}.part")
        with open(partial, "w", opener=_open_private) as file:
            json.dump(asdict(self), file)
        partial.replace(path)
        return path


def remove_socket(path: str) -> None:
    """Remove a socket and its folder, which has nothing else, if a process of profkit made them."""
    socket_path = Path(path)
    with contextlib.suppress(OSError):
        if socket_path.parent.name.startswith(FOLDER_PREFIX) and socket_path.is_socket():
            socket_path.unlink()
            socket_path.parent.rmdir()


def _is_listened_on(path: str) -> bool:
    """Tell whether a process has a socket open; True if that is not known."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_LIMIT_S)
        try:
            connection.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # of another user, or its queue is full
            return True
    return True


def _open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read."""
    return os.open(path, flags, 0o600)


def read_endpoints(folder: Path) -> list[tuple[Path, Endpoint]]:
    """Read the files in a folder, without those that are damaged."""
    endpoint_files = []
    for path in sorted(folder.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            endpoint = Endpoint(**json.loads(path.read_text()))
            endpoint_files.append((path, endpoint))
    return endpoint_files


class Conversation:
    """Connections to the processes of a job. Each is asked, and answers once per question.

    Args:
        processes: Those of this machine.

    Attributes:
        failed: Processes that could not be asked, or have closed the connection, and why.
    """

    def __init__(self, processes: Sequence[Endpoint]) -> None:
        self.failed: dict[Endpoint, str] = {}
        self._selector = selectors.DefaultSelector()
        self._open: dict[Endpoint, socket.socket] = {}
        self._received: dict[Endpoint, bytes] = {}

        for process in processes:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_CONNECT_LIMIT_S)
            try:
                connection.connect(process.socket)
            except OSError as error:
                connection.close()
                self.failed[process] = f"cannot be reached ({error.strerror or error})"
            else:
                self._open[process] = connection
                self._selector.register(connection, selectors.EVENT_READ, process)

    @property
    def processes(self) -> list[Endpoint]:
        """Return the processes whose connection is open."""
        return list(self._open)

    def forget_all_but(self, processes: Collection[Endpoint]) -> None:
        """Close the connections to all others."""
        for process in self._open.keys() - set(processes):
            self._drop(process, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in list(self._open):
            self._drop(process, "")
        self._selector.close()

    def ask(
        self,
        question: Mapping[str, object],
        timeout_s: float,
        on_answer: Callable[[Endpoint, Message], object] = lambda _process, _answer: None,
    ) -> dict[Endpoint, Message]:
        """Ask all of them, and wait for their answers.

        Args:
            timeout_s: How long it waits in all.
            on_answer: Called with each answer as it comes.
        """
        line = json.dumps(question).encode() + b"\n"
        for process, connection in list(self._open.items()):
            if not _send(connection, line):
                self._drop(process, "has ended")

        answers: dict[Endpoint, Message] = {}
        until_s = time.monotonic() + timeout_s

        # A process that ends meanwhile is no longer among the open ones.
        while len(answers) < len(self._open) and time.monotonic() < until_s:
            for key, _ in self._selector.select(max(until_s - time.monotonic(), 0)):
                answer = self._receive(key.data)
                if answer is not None:
                    answers[key.data] = answer
                    on_answer(key.data, answer)
        return answers

    def _receive(self, process: Endpoint) -> Message | None:
        """Receive a whole answer; None while it is incomplete, or if the process has ended."""
        try:
            chunk = self._open[process].recv(_CHUNK)
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(process, "has ended")
            return None

        line, newline, remainder = (self._received.get(process, b"") + chunk).partition(b"\n")
        self._received[process] = remainder if newline else line
        answer: Message | None = json.loads(line) if newline else None
        return answer

    def _drop(self, process: Endpoint, reason: str) -> None:
        connection = self._open.pop(process)
        self._selector.unregister(connection)
        connection.close()
        if reason:
            self.failed[process] = reason


def _send(connection: socket.socket, line: bytes) -> bool:
    """Send a line; return False if the process has closed the connection."""
    try:
        connection.sendall(line)
    except OSError:
        return False
    return True
