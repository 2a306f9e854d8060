"""The end of a recording without steps, when its time is up."""

import subprocess
import sys
from pathlib import Path

import pytest

COMPILES = """\
import torch
from torch.autograd import profiler
from profkit.capture.run import run_window

def backend(graph, inputs):
    run_window.Deadline.act()
    print("recorded during compilation:", profiler._is_profiler_enabled)
    return graph.forward

compiled = torch.compile(torch.nn.Linear(2, 2), backend=backend)
compiled(torch.ones(1, 2)).sum().backward()
print("recorded afterwards:", profiler._is_profiler_enabled)
run_window.Deadline.act()
print("recorded at last:", profiler._is_profiler_enabled)
"""
WAITS = """\
import threading
import time
import torch
from torch.autograd import profiler

model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2))

def serve():
    end = time.monotonic() + 20
    while profiler._is_profiler_enabled and time.monotonic() < end:
        model(torch.ones(1, 2))

worker = threading.Thread(target=serve)
worker.start()
worker.join()
print("still recorded:", profiler._is_profiler_enabled)
"""
RUN = """\
import sys
from profkit.capture.run import run_window, step_detection
{setting}
from profkit.cli.main import main
sys.argv = ["profkit", "run", "program.py"]
main()
"""
SHORT = "step_detection.STACKS = run_window.Window(seconds=0.2, cpu_s=0.0, at_most_s=0.2)"
BY_HAND = """\
class Deadline:
    has_signal = True
    def __init__(self, seconds, act, **others):
        Deadline.act = act
    def cancel(self):
        pass
run_window.Deadline = Deadline
run_window.FEW_EVENTS_NS = run_window.ENOUGH_EVENTS_NS = 0
"""
"""Time is up whenever the program calls ``act``, and what was recorded is enough."""


def printed(program: str, setting: str, folder: Path) -> list[str]:
    """The lines that a program prints under ``profkit run`` with another time for recording."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-c", RUN.format(setting=setting)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_compilation_ends_first(tmp_path: Path) -> None:
    """Otherwise the program ended with an error or with a segmentation fault."""
    assert printed(COMPILES, BY_HAND, tmp_path)[:3] == [
        "recorded during compilation: True",
        "recorded afterwards: True",
        "recorded at last: False",
    ]


@pytest.mark.slow
def test_the_main_thread_may_wait_for_others(tmp_path: Path) -> None:
    assert printed(WAITS, SHORT, tmp_path)[0] == "still recorded: False"
