"""The thread of a program that answers questions on its Unix socket.

It waits in the system until somebody asks: the program pays nothing meanwhile.
"""

import json
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from profkit.capture.live.endpoint import FOLDER_PREFIX, Message

_CHUNK: Final = 1 << 16
"""Bytes that are received at once."""
_MAX_QUESTION: Final = 1 << 16
"""A longer line is no question of profkit's, and ends the connection."""
_SEND_LIMIT_S: Final = 5.0
"""A client that does not read, such as one that is stopped, keeps the thread no longer."""
_RETRY_S: Final = 0.05
"""How soon to accept a connection again where the program has no file left."""
_SHORT_FOLDER: Final = "/tmp"  # noqa: S108  (a folder in it is made by mkdtemp)


class Client:
    """One connection of somebody who asks.

    Attributes:
        connection: Its socket.
        received: What was received of a question that is not complete yet.
        is_gone: Whether an answer could not be sent, so that no other will be.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.is_gone = False
        connection.settimeout(_SEND_LIMIT_S)

    def answer(self, message: Message) -> None:
        """Send an answer; one who has gone, or does not read, gets none."""
        if self.is_gone:
            return
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_gone = True


Answer = Callable[[Message, Client], Message | None]
"""Returns the answer to a question, or None if the client gets it later."""


def _open_socket() -> tuple[socket.socket, str]:
    """Open a socket in the temporary folder, or in /tmp where its path would be too long.

    Schedulers give each job a temporary folder of its own; a socket's path has at most 107
    characters on Linux.

    Returns:
        The socket, and its path.

    Raises:
        OSError: Neither folder can have one.
    """
    folders = dict.fromkeys((tempfile.gettempdir(), _SHORT_FOLDER))
    errors: list[OSError] = []

    for parent in folders:
        folder = None
        listening = socket.socket(socket.AF_UNIX)
        try:
            folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)
            path = str(Path(folder) / "socket")
            listening.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101
            listening.listen()
        except OSError as error:
            errors.append(OSError(f"no socket in {parent}: {error}"))
            listening.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            return listening, path
    raise errors[0]


class Server:
    """A thread that answers.

    Args:
        answer: Called in that thread.
        gone: Called in that thread with a client that has closed its connection.

    Attributes:
        path: The socket.

    Raises:
        OSError: There can be no socket.
    """

    def __init__(self, answer: Answer, gone: Callable[[Client], None]) -> None:
        self._answer = answer
        self._gone = gone
        self._clients: list[Client] = []
        self._socket, self.path = _open_socket()
        self._folder = str(Path(self.path).parent)

        # A thread that waits in ``select`` notices only a socket.
        self._wake, self._woken = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, name="profkit", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the thread, the connections and the socket."""
        self._wake.close()

        # A question that takes long does not hold the program up.
        self.thread.join(1.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget_in_child(self) -> None:
        """Close what a forked child has inherited; the socket stays the parent's."""
        for inherited in (self._socket, self._wake, self._woken):
            inherited.close()
        for client in self._clients:
            client.connection.close()

    def _serve(self) -> None:
        """Wait for connections and questions until :meth:`stop` is called."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)

            # ``stop`` closes the other end of this pair, which makes it readable.
            is_open = True
            while is_open:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        is_open = False
                    elif key.fileobj is self._socket:
                        self._accept(selector)
                    elif not self._is_served(key.data):
                        selector.unregister(key.data.connection)
                        self._leave(key.data)

        for client in list(self._clients):
            self._leave(client)
        self._socket.close()
        self._woken.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Accept a connection, if the program has a file left for it."""
        try:
            connection, _ = self._socket.accept()
        except OSError:
            # Whoever asks waits in the socket's queue, which stays readable meanwhile.
            time.sleep(_RETRY_S)
            return
        client = Client(connection)
        self._clients.append(client)
        selector.register(connection, selectors.EVENT_READ, client)

    def _leave(self, client: Client) -> None:
        self._clients.remove(client)
        client.connection.close()
        self._gone(client)

    def _is_served(self, client: Client) -> bool:
        """Read what a client has sent, and answer; False if the connection has ended."""
        try:
            chunk = client.connection.recv(_CHUNK)
        except OSError:
            return False
        client.received += chunk
        *lines, client.received = client.received.split(b"\n")
        for line in lines:
            try:
                answer = self._answer(json.loads(line), client)
            except Exception as error:  # noqa: BLE001  (no question may end the thread)
                answer = {"error": f"profkit failed there ({type(error).__name__}: {error})."}
            if answer is not None:
                client.answer(answer)
        return bool(chunk) and len(client.received) < _MAX_QUESTION and not client.is_gone
