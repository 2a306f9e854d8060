"""A program that the fork server runs finds, does and ends as one in a process of its own."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.processes import Ended, start, start_forked

LOOKS = """\
import atexit, json, os, signal, sys, threading

def modules():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "torch")

class Finder:
    def find_spec(self, name, path=None, target=None):
        asked.append(name)

asked = []
sys.meta_path.insert(0, Finder())
seen = {
    "arguments": [sys.argv, sys.orig_argv[1:], [*sys.path], sys.flags.safe_path],
    "main": [__name__, globals().get("__file__"), sys.modules["__main__"].__dict__ is globals()],
    "builtins": type(__builtins__).__name__,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "descriptors": sorted(os.listdir("/proc/self/fd")) if sys.platform == "linux" else [],
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "main thread": threading.get_native_id() == threading.main_thread().native_id == os.getpid(),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "before": modules(),
}
import torch
seen["imported"] = modules()
seen["torch was looked for"] = asked.count("torch")
seen["spec"] = [torch.__spec__.origin, type(torch.__spec__.loader).__name__]
seen["threads"] = [each.name for each in threading.enumerate()], len(os.listdir("/proc/self/task"))
seen["dynamo"] = "torch._dynamo" in sys.modules
weight = torch.nn.Parameter(torch.ones(1))
weight.sum().backward()
torch.optim.SGD([weight]).step()
seen["dynamo later"] = torch._dynamo is sys.modules["torch._dynamo"]
seen["imported later"] = modules()
print(json.dumps(seen))
atexit.register(print, "at the end")
sys.exit(sys.argv[1] + " is wrong")
"""


def is_running(pid: str) -> bool:
    """Return whether a process has not ended; init may not have asked yet how."""
    try:
        return " Z " not in Path("/proc", pid, "stat").read_text()
    except OSError:
        return False


def both(folder: Path, *command: str) -> tuple[Ended, Ended]:
    return start(folder, *command, COLOUR="red"), start_forked(folder, *command, COLOUR="red")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_a_program_finds_what_it_finds_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(LOOKS)
    expected, ended = both(tmp_path, "looks.py", "lr")
    assert (ended.code, ended.err) == (expected.code, expected.err) == (1, "lr is wrong\n")
    *_, last = ended.out.splitlines()
    assert last == "at the end"
    seen: list[dict[str, Any]] = [json.loads(run.out.splitlines()[0]) for run in (expected, ended)]
    assert seen[0].pop("before") == seen[1].pop("before") == []
    assert len(seen[0]["imported"]) < len(seen[0]["imported later"])
    assert seen[1] == seen[0]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("-c", "print(__name__, __import__('sys').argv)", "1"), 0),
        (("-m", "base64", "-h"), 0),
        (("-m", "no_such_module"), 1),
        (("-c", "raise KeyboardInterrupt"), -signal.SIGINT),
        (("-c", "import os; os.kill(os.getpid(), 15)"), -signal.SIGTERM),
        (("-c", "import os; os._exit(9)"), 9),
        (
            ("-c", "import threading; threading.Timer(0.1, print, ('last',)).start(); print(1)"),
            0,
        ),
    ],
    ids=str,
)
def test_a_program_ends_as_in_a_process_of_its_own(
    command: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    expected, ended = both(tmp_path, *command)
    assert (ended.code, ended.out) == (expected.code, expected.out)
    assert ended.code == code
    assert ended.err.splitlines()[-1:] == expected.err.splitlines()[-1:]


def test_each_program_has_other_random_numbers(tmp_path: Path) -> None:
    source = "import torch, numpy; print(torch.initial_seed(), torch.rand(1), numpy.random.rand())"
    assert start_forked(tmp_path, "-c", source) != start_forked(tmp_path, "-c", source)


def test_a_variable_that_an_import_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other values of OMP_NUM_THREADS"):
        start_forked(tmp_path, "-c", "", OMP_NUM_THREADS="2")


def test_a_program_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LIMIT_S", 1)
    source = "import os, time; os.fork(); open(str(os.getpid()), 'w'); time.sleep(99)"
    with pytest.raises(TimeoutError):
        start_forked(tmp_path, "-c", source)
    pids = [path.name for path in tmp_path.iterdir()]
    assert len(pids) == 2
    ends_s = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < ends_s
        time.sleep(0.01)
