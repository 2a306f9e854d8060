"""A TensorBoard server on the loopback interface, with the HTTP requests of its pages."""

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

PLUGIN = "data/plugin/pytorch_profiler"
START_LIMIT_S = 120
LOAD_LIMIT_S = 120
_GZIP = b"\x1f\x8b"


class TensorBoard:
    """A running server.

    Args:
        address: Its address, ending with a slash.
        log: The lines that it has written so far; the list grows.
    """

    def __init__(self, address: str, log: list[str]) -> None:
        self.address = address
        self.log = log

    def fetch(self, route: str, **query: str) -> bytes:
        """Return the response of a route of the torch-tb-profiler plugin.

        Raises:
            HTTPError: The server answered with an error.
        """
        address = f"{self.address}{PLUGIN}/{route}?{urlencode(query)}"
        with urlopen(address, timeout=60) as answer:  # noqa: S310  (our own server)
            return bytes(answer.read())

    def ask(self, route: str, **query: str) -> Any:  # noqa: ANN401  (each route has its own)
        """Return the decoded response of a route; some are compressed regardless of the request."""
        answer = self.fetch(route, **query)
        return json.loads(gzip.decompress(answer) if answer.startswith(_GZIP) else answer)

    def runs(self, n: int) -> list[str]:
        """Return the runs that the plugin lists once it has loaded at least so many.

        On a busy machine it lists a run slightly before its views.
        """
        deadline = time.monotonic() + LOAD_LIMIT_S
        while time.monotonic() < deadline:
            answer = self.ask("runs")
            listed = list(answer["runs"])
            loaded = len(listed) >= n and not answer["loading"]
            if loaded and all(self.ask("views", run=run) for run in listed):
                return listed
            time.sleep(0.2)
        raise TimeoutError(f"{n} runs expected, {answer}\n" + "\n".join(self.log))

    def loaded(self, run: str) -> str:
        """Return the run, once its views are available; others may be broken."""
        deadline = time.monotonic() + LOAD_LIMIT_S
        while time.monotonic() < deadline:
            if run in self.ask("runs")["runs"] and self.ask("views", run=run):
                return run
            time.sleep(0.2)
        raise TimeoutError(f"{run} was not loaded\n" + "\n".join(self.log))


@contextlib.contextmanager
def serving(logdir: Path, module: str = "tensorboard.main") -> Iterator[TensorBoard]:
    """Start TensorBoard on a folder with a temporary cache, and stop it at the end."""
    with tempfile.TemporaryDirectory() as cache:
        yield from _serve(logdir, cache, module)


def _serve(logdir: Path, cache: str, module: str) -> Iterator[TensorBoard]:
    command = [sys.executable, "-m", module, "--logdir", str(logdir)]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--load_fast", "false"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": cache},
    )
    log: list[str] = []
    addresses: list[str] = []
    is_known = threading.Event()

    def listen() -> None:
        for line in server.stderr or ():
            log.append(line.rstrip())
            if match := re.search(r"TensorBoard \S+ at (http://\S+/)", line):
                addresses.append(match[1])
                is_known.set()
        is_known.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        if not is_known.wait(START_LIMIT_S) or not addresses:
            raise TimeoutError("TensorBoard did not start\n" + "\n".join(log))
        yield TensorBoard(addresses[0], log)
    finally:
        server.terminate()
        server.wait(30)
        listener.join(5)
        assert server.stderr is not None
        server.stderr.close()
