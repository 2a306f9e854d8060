"""``profkit.listen``: a running program says where it is, and records its next steps on request.

Questions are answered by a thread that waits for them (:mod:`profkit.capture.live.server`). The end
of a step only counts it, notes the time, and checks whether a recording was requested. There are no
signal handlers: a stray signal without a handler ends a program.
"""

import atexit
import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

from profkit.arguments import NAME, PATH, Arguments, optional
from profkit.capture.live.endpoint import Endpoint, Message
from profkit.capture.live.process_now import measure_memory, read_stacks
from profkit.capture.live.recorder import StepRecorder
from profkit.capture.live.server import Client, Server
from profkit.capture.live.step_clock import StepClock
from profkit.capture.live.step_ends import StepEnds
from profkit.capture.process import console, devices, environment, files, launch
from profkit.capture.process.torch_import import TorchImport
from profkit.capture.recording.options import IS_ON
from profkit.capture.syncs import sync_monitor
from profkit.folders import working_folder
from profkit.names import visible

VARIABLE: Final = "PROFKIT_LISTEN"
_ARGUMENTS: Final = Arguments("profkit.listen", name=optional(NAME), dir=optional(PATH))


class NotListening:
    """``profkit.listen`` with ``PROFKIT=0``, or where it could not begin."""

    folder: None = None

    def step(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def end(self, stopped_by: str) -> None:
        """Do nothing."""


class ProgramListener:
    """A program that listens.

    Args:
        name: The name of the run.
        folder: The folder of the run, absolute.

    Attributes:
        folder: The folder of the run, for users.

    Raises:
        OSError: The folder or the socket cannot be created.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self._pid = os.getpid()
        self._clock = StepClock()
        self._ends = StepEnds(self._clock)
        self._recorder = StepRecorder(name, folder, self._ends, self._clock)
        self._torch_import = TorchImport(self._on_torch_import)
        self._watching: set[Client] = set()
        self._n_syncs = 0
        self._is_open = True

        # The thread answers from here on: it needs all of the above.
        self._server = Server(self._answer, self._forget_client)
        host = socket.gethostname()
        endpoint = Endpoint(_job_id(host), host, self._pid, self._server.path, time.time_ns())
        try:
            self._file = endpoint.write(folder)
        except OSError:
            self._server.stop()
            raise

        self._torch_import.watch()

    def __repr__(self) -> str:
        state = str(self.folder) if self._is_open else "stopped"
        return f"<profkit.listen: {visible(state)}>"

    def step(self) -> None:
        """End a step, in a program that has neither an optimizer nor a DataLoader."""
        self._ends.user_stepped()

    def stop(self) -> None:
        """Listen no more. A recording that is under way ends."""
        self.end("")

    def end(self, stopped_by: str) -> None:
        """Listen no more, and end a recording that is under way.

        Args:
            stopped_by: What ends the program, or empty.
        """
        if not self._is_open or self._pid != os.getpid():
            return

        self._is_open = False
        atexit.unregister(self.end)
        if _state.listener is self:
            _state.listener = None

        self._torch_import.stop()
        self._recorder.stop(stopped_by)
        self._ends.end()
        self._file.unlink(missing_ok=True)
        self._server.stop()

    def forget_in_child(self) -> None:
        """Leave it to the parent, in a forked child."""
        if self._is_open:
            self._is_open = False
            self._server.forget_in_child()
            self._ends.end()

    def _on_torch_import(self) -> None:
        try:
            self._ends.begin()
        except (ImportError, AttributeError) as error:
            console.warn("steps cannot be detected with this version of torch.", error)

    def _answer(self, question: Message, client: Client) -> Message | None:
        """Return the answer to a question; called in the thread that answers."""
        topic = question.get("ask")

        if topic == "record":
            n_steps, memory = int(question["steps"]), bool(question["memory"])
            return self._recorder.begin(str(question["id"]), n_steps, client, memory=memory)

        if topic == "identity":
            return self._identity()

        if topic == "stacks":
            this_thread = self._server.thread.ident
            return {**self._identity(), "stacks": read_stacks(except_for=this_thread)}

        if topic == "figures":
            self._watch_syncs(client)
            figures = self._clock.since(int(question["after"]))
            return {
                **self._identity(),
                **figures,
                "now_ns": time.perf_counter_ns(),
                "steps": self._ends.source,
                "n_syncs": self._n_syncs if self._watching else None,
                "memory": measure_memory(),
                "is_recording": self._recorder.request is not None,
            }

        return {"error": "it has another version of profkit, which does not know this question"}

    def _identity(self) -> Message:
        rank, world_size = environment.ranks()
        return {"rank": rank, "world_size": world_size, "pid": self._pid}

    def _watch_syncs(self, client: Client) -> None:
        """Count syncs as long as this client looks, in a program that uses CUDA."""
        # Each wait takes some 15 µs more while it is counted, so only while somebody looks.
        if client in self._watching or not any(devices.modules_in_use(("cuda",))):
            return
        if not self._watching:
            sync_monitor.subscribe(self._count_sync)
        self._watching.add(client)

    def _count_sync(self, _sync: object, _raises_at_line: bool) -> None:  # noqa: FBT001  (a Listener)
        self._n_syncs += 1

    def _forget_client(self, client: Client) -> None:
        """Drop what a client has wanted, once it has closed its connection."""
        self._recorder.cancel(client)
        if client in self._watching:
            self._watching.remove(client)
            if not self._watching:
                sync_monitor.unsubscribe(self._count_sync)


class _ProcessState:
    """What listens in this process.

    Attributes:
        listener: The one that does, or None.
    """

    listener: ProgramListener | None = None


_state: Final = _ProcessState()
"""The listener of this process, or None."""


def listen(
    name: str | None = None,
    /,
    *,
    dir: str | os.PathLike[str] | None = None,
) -> ProgramListener | NotListening:
    """Let ``profkit trigger``, ``profkit top`` and ``profkit stacks`` reach this program.

    ::

        profkit.listen("train")
        for batch in loader:
            train_step(batch)

    A thread waits for questions on a Unix socket that only this user can open; the folder of the
    run, which is printed to stderr, says where it is. A step ends with an optimizer step, or with
    ``step()`` of a ``profkit.trace`` or of the object that this returns, or else with a batch of a
    DataLoader, which takes less than a microsecond.

    Args:
        name: A name for the folder and the reports (default: that of the script).
        dir: Folder for files (default ``$PROFKIT_DIR``, else ``traces``).

    Returns:
        An object with ``folder``, ``step()`` and ``stop()``; the same one in later calls.

    Raises:
        UsageError: If an argument is invalid.
    """
    _ARGUMENTS.check(name=name, dir=dir)
    title = name or Path(sys.argv[0] if sys.argv else "").stem.lstrip("-") or "run"
    folder = files.trace_folder(None if dir is None else os.fspath(dir), title)
    return _state.listener or begin(title, working_folder() / folder)


def begin(name: str, folder: Path) -> ProgramListener | NotListening:
    """Listen from now on; an error becomes a warning.

    Args:
        folder: The folder of the run, absolute.
    """
    if not IS_ON:
        return NotListening()
    try:
        _state.listener = listener = ProgramListener(name, folder)
    except OSError as error:
        console.warn(f"profkit.listen fails in {folder}; the program runs without it.", error)
        return NotListening()
    atexit.register(listener.end, "exit")
    console.note(f"listening; from another terminal: profkit top {folder}")
    return listener


def begin_if_wanted() -> None:
    """Listen if the environment asks for it, in a program that uses profkit, not in its children.

    A worker of a loader that is not forked imports the program again.
    """
    process = sys.modules.get("multiprocessing.process")
    if (
        is_wanted()
        and _state.listener is None
        and (process is None or not process.parent_process())
    ):
        listen()


def is_wanted() -> bool:
    """Tell whether the environment asks to listen."""
    return os.environ.get(VARIABLE, "0").strip().lower() not in {"", "0", "off", "false", "no"}


def _job_id(host: str) -> str:
    """Return an id that the ranks of this job share, and no other program."""
    if files.torchrun_job() is not None or launch.launched_rank() is not None:
        return files.job_name()

    # Without a launcher, ranks are processes that one program has spawned.
    process = sys.modules.get("multiprocessing.process")
    parent = None if process is None else process.parent_process()
    return f"{host}-{os.getpid() if parent is None else parent.pid}"


def _forget_in_child() -> None:
    if _state.listener is not None:
        _state.listener.forget_in_child()
        _state.listener = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
