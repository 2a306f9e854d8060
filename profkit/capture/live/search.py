"""Finds a running program: by its name, the id of one of its processes, or its folder."""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from profkit.capture.live.endpoint import PREFIX, Endpoint, read_endpoints
from profkit.capture.process.launch import is_alive
from profkit.errors import CaptureError
from profkit.folders import traces_folder

_PROCESSES: Final = Path("/proc")
_LET_LISTEN: Final = "Start it with `PROFKIT_LISTEN=1 profkit run`, or call profkit.listen() in it."
_EndpointFiles = list[tuple[Path, Endpoint]]


def locate_program(run: str | None) -> str:
    """Return the folder in which a program listens, or the file of one of its processes.

    Args:
        run: A path, the name of a run in the folder for traces, or the id of a process; None for
            the one program that listens.

    Raises:
        CaptureError: Nothing of that name or id listens.
    """
    if run is None:
        return traces_folder()
    if os.path.lexists(run):
        return run

    if run.isdecimal():
        return _locate_process(int(run))
    folder = Path(traces_folder()) / run
    if not folder.is_dir():
        raise _nobody_listens(f"No program named {run} listens", run)
    return str(folder)


def find_listening(run: str) -> list[Endpoint]:
    """Find the processes of the job that listens in a folder.

    Args:
        run: The folder of the run, the folder above it if it has one run only, or the file of one
            process.

    Raises:
        CaptureError: Nothing listens there, or several jobs do, or that of another user.
    """
    path = Path(run)
    endpoint_files = _find_endpoints(path)
    alive = [(file, endpoint) for file, endpoint in endpoint_files if not endpoint.has_died]

    if not alive and _is_of_another_user(path):
        raise CaptureError(
            f"The program that listens in {run} is another user's.",
            "Only the user who started it can ask it: its socket has mode 0600.",
        )
    if not alive:
        died = ", ".join(str(endpoint.pid) for _, endpoint in endpoint_files)
        gone = f": process {died} does not listen any more" if died else ""
        raise _nobody_listens(f"No program listens in {run}{gone}", path.name)

    jobs = {endpoint.job: file for file, endpoint in alive}
    if len(jobs) > 1:
        raise CaptureError(f"{len(jobs)} programs listen in {run}.", _tell_apart(jobs.values()))
    return [endpoint for _, endpoint in alive]


def _locate_process(pid: int) -> str:
    """Return the folder or the file of a process that listens.

    Raises:
        CaptureError: It does not listen, or there is none.
    """
    # Another program may have been started in another folder.
    folders = [Path(traces_folder()), _PROCESSES / str(pid) / "cwd" / "traces"]
    for folder in folders:
        for file, endpoint in _find_endpoints(folder):
            if endpoint.pid == pid and not endpoint.has_died:
                with contextlib.suppress(CaptureError):
                    find_listening(str(file.parent))
                    return str(file.parent)
                return str(file)

    if is_alive(pid):
        message = f"Process {pid} runs and does not listen in {folders[0]}."
        raise CaptureError(message, _LET_LISTEN)
    raise CaptureError(f"There is no process {pid}.", "It has ended.")


def _nobody_listens(message: str, program: str) -> CaptureError:
    """Return the error that no program listens, with the processes that run it without listening.

    Args:
        program: The name of its script or module.
    """
    pids = _find_processes(program)
    if not pids:
        hint = f"It has ended, or does not listen. {_LET_LISTEN}"
        return CaptureError(f"{message}.", hint)

    numbers = ", ".join(map(str, pids))
    who = f"process {numbers} runs" if len(pids) == 1 else f"processes {numbers} run"
    return CaptureError(f"{message}, but {who} {program}.", _LET_LISTEN)


def _tell_apart(files: Collection[Path]) -> str:
    """Say how each of several programs is named."""
    names = [file.parent.name for file in files]
    if len(set(names)) == len(names):
        return f"Name one of them: {', '.join(names)}."
    return f"Name the file of one process instead: {', '.join(map(str, files))}."


def _find_endpoints(path: Path) -> _EndpointFiles:
    """Find the files of processes in the folder of a run or the one above, or of a file's job."""
    if path.is_file():
        in_folder = read_endpoints(path.parent)
        jobs = {endpoint.job for file, endpoint in in_folder if file == path}
        return [(file, endpoint) for file, endpoint in in_folder if endpoint.job in jobs]

    if in_folder := read_endpoints(path):
        return in_folder
    return [pair for folder in sorted(path.glob("*/")) for pair in read_endpoints(folder)]


def _is_of_another_user(run: Path) -> bool:
    """Tell whether a file there, or the folder, cannot be read."""
    try:
        return any(
            not os.access(path, os.R_OK)
            for path in (run, *run.glob(f"{PREFIX}*"), *run.glob(f"*/{PREFIX}*"))
            if path.exists()
        )
    except PermissionError:
        return True


def _find_processes(name: str) -> list[int]:
    """Find the processes that run a script or module of a name, as far as the system tells.

    Source: proc(5): ``/proc/PID/cmdline`` has the words of the command, each ended by a NUL.
    """
    pids = []
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_module = "-m" in words and words[words.index("-m") + 1] == name
            is_python = "python" in Path(words[0]).name or "profkit" in words[0]
            if is_python and (is_module or any(Path(word).name == f"{name}.py" for word in words)):
                pids.append(int(folder.name))
    return sorted(pids)
