"""Runs a small program under ``profkit run`` again and again, each time with another fault.

``python faulty_run.py one:REGEX from:REGEX ...`` runs it once without a fault, and notes the calls
of the system that profkit makes once it has begun the program, while it records, monitors and
reports: opening, reading and writing files, folders, modules, threads, processes. Then each of them
that matches the expression fails, in a process that is forked for it; with ``from`` every later one
fails too, as where no file can be opened any more. A line of JSON says how each ended.
"""

import builtins
import errno
import io
import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

import profkit
from profkit.cli.main import main

PROFKIT: Final = str(Path(profkit.__file__).parent) + os.sep
EVENTS: Final = (
    "open", "os.", "tempfile.", "subprocess.Popen", "mmap.", "socket.", "shutil.",
    "_thread.start_new_thread", "ctypes.dlopen",
)  # fmt: skip
"""Beginnings of the audit events that are calls of the system."""
STARTS_PROGRAM: Final = PROFKIT + "capture/process/program.py"
"""It reads the program's file, as Python itself does."""
BEGINS: Final = ("prog.py", "readers/process_memory.py")
"""The program, and the first of what is imported with torch. What fails before, no program sees."""
METHODS: Final = {"read", "readinto", "readline", "write", "flush", "close", "seek", "tell"}
CODES: Final = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES)
PROGRAM: Final = """\
import torch
torch.set_num_threads(1)
kept = []
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    kept.append(torch.zeros(65536))
print("end", len(kept))
raise SystemExit(3)
"""


class Faults:
    """Hears of the calls of the system that profkit makes, and lets one of them fail.

    Attributes:
        calls: The calls, each once: an event and the line of profkit that caused it.
        failed: Whether the call came.
    """

    def __init__(self, call: str, *, and_later: bool) -> None:
        self.calls: dict[str, None] = {}
        self.failed = False
        self._call = call
        self._and_later = and_later
        self._has_begun = False
        self._is_inside = False

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise a planned fault from the audit hook, and so from the call."""
        if event == "exec" and getattr(args[0], "co_filename", "").endswith(BEGINS):
            self._has_begun = True
        elif event.startswith(EVENTS):
            self.call(event)

    def call(self, event: str) -> None:
        """Note a call, and raise its fault."""
        if self._is_inside or not self._has_begun or not self._call:
            return
        self._is_inside = True

        try:
            line = _caller()
        finally:
            self._is_inside = False

        if not line:
            return
        call = f"{event} {line}"
        self.calls[call] = None
        is_it = call == self._call and not self.failed
        if not is_it and not (self._and_later and self.failed):
            return
        self.failed = True
        if event.startswith("_thread"):
            raise RuntimeError("can't start new thread")
        code = CODES[len(call) % len(CODES)]
        raise OSError(code, os.strerror(code))

    def stop(self) -> None:
        """Let no call fail any more."""
        self._call = ""

    def open(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """``open()`` with a file whose methods may fail, if profkit calls it."""
        file = OPEN(*args, **kwargs)
        return FaultyFile(file, self) if _caller() else file


OPEN: Final = io.open


def _caller() -> str:
    """Return the line of profkit that makes a call; empty where it is the program's or torch's."""
    frame: FrameType | None = sys._getframe(2)
    how = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file == STARTS_PROGRAM:
            return ""
        if file.startswith(PROFKIT):
            return f"{how}{file.removeprefix(PROFKIT)}:{frame.f_lineno}"
        if "importlib" in file:
            how = "import "
        if "/torch/" in file or file.endswith("prog.py"):
            return ""
        frame = frame.f_back
    return ""


class FaultyFile:
    """An open file whose methods may fail."""

    def __init__(self, raw: Any, faults: Faults) -> None:  # noqa: ANN401
        self._raw = raw
        self._faults = faults

    def __enter__(self) -> Any:  # noqa: ANN401
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def __iter__(self) -> Any:  # noqa: ANN401
        return iter(self._raw)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        attribute = getattr(self._raw, name)
        if name not in METHODS:
            return attribute

        def method(*args: Any) -> Any:  # noqa: ANN401
            try:
                self._faults.call(name)
            except OSError:
                if name == "close":
                    attribute()
                raise
            return attribute(*args)

        return method


def run(folder: Path, call: str, *, and_later: bool) -> None:
    """Run the program with a fault, in this process, which has been forked for it."""
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    faults = Faults(call, and_later=and_later)
    io.open = builtins.open = faults.open
    sys.addaudithook(faults.hear)

    try:
        code: object = main(["run", "--json", "report.json", "prog.py"])
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001  (whatever comes out is a fault)
        code = traceback.format_exc()

    faults.stop()
    sys.stdout.flush()
    end = {"code": code, "calls": list(faults.calls), "failed": faults.failed}
    Path("end.json").write_text(json.dumps(end))
    os._exit(0)


def tried(call: str, *, and_later: bool) -> dict[str, Any]:
    """How the program ended with a fault."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prog.py").write_text(PROGRAM)
        if (child := os.fork()) == 0:
            run(folder, call, and_later=and_later)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end = folder / "end.json"
        return {
            **(json.loads(end.read_text()) if end.exists() else {"code": f"ended by {status}"}),
            "call": call,
            "out": (folder / "out").read_text(),
            "err": (folder / "err").read_text(errors="replace"),
            "partial": sorted(path.name for path in folder.rglob("*.part")),
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    without = tried("none", and_later=False)
    print(json.dumps(without), flush=True)  # a fork has what is not written yet
    for argument in sys.argv[1:]:
        how, _, expression = argument.partition(":")
        for fault in filter(re.compile(expression).search, without["calls"]):
            print(json.dumps(tried(fault, and_later=how == "from")), flush=True)
