"""Programs that end inside a block, each in its own process."""

import concurrent.futures
import gzip
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Ended, start, start_forked

START = """\
import os, signal, sys
import torch
import profkit

# A test run in the background ignores Ctrl-C, and its child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

def work():
    return (torch.ones(4, 4) @ torch.ones(4, 4)).sum()

"""

PROGRAMS = {
    "sigterm": """
with profkit.trace("step"):
    work()
    os.kill(os.getpid(), signal.SIGTERM)
    print("in the block", flush=True)
print("never", flush=True)
""",
    "sigterm-while-writing": """
from profkit.capture.process import files
write = files.write_trace
def slow(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    write(*args)
files.write_trace = slow
with profkit.trace("step", warmup=1, active=1) as t:
    for _ in range(100):
        work()
        t.step()
print("never", flush=True)
""",
    "chdir": """
with profkit.trace("step", dir="here-traces"):
    work()
    os.chdir("/")
""",
    "sigterm-own-handler": """
def handler(number, frame):
    print("own handler", flush=True)
signal.signal(signal.SIGTERM, handler)
with profkit.trace("step"):
    work()
    os.kill(os.getpid(), signal.SIGTERM)
    print("continues", flush=True)
assert signal.getsignal(signal.SIGTERM) is handler
""",
    "sigterm-ignored": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with profkit.trace("step"):
    work()
    os.kill(os.getpid(), signal.SIGTERM)
print("continues", flush=True)
""",
    "interrupt": """
with profkit.trace("step"):
    work()
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        work()
print("never", flush=True)
""",
    "exit": """
with profkit.trace("step"):
    work()
    sys.exit(7)
""",
    "never-ended": """
block = profkit.trace("step").__enter__()
work()
""",
    "fork": """
with profkit.trace("step") as t:
    work()
    child = os.fork()
    if child == 0:
        with profkit.trace("in the child") as inner:
            work()
        assert inner.path is None
if child == 0:
    assert t.path is None
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
with profkit.trace("afterwards"):
    work()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
if (child := os.fork()) == 0:
    work()
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
""",
    "loader-workers": """
from torch.utils.data import DataLoader
with profkit.trace("step"):
    for batch in DataLoader(list(range(8)), num_workers=2):
        work()
""",
}

OWN_PROCESS = {"never-ended", "fork", "off"}
"""Programs of the end of Python, of forks and of imports."""

RECORDING_OFF = """\
import sys
import profkit

@profkit.trace
def step():
    return 1

with profkit.trace("block", wait=1, active=1) as t:
    step()
    t.step()
for _ in profkit.steps(range(3), "loop"):
    pass
assert not {"torch", "pandas"} & set(sys.modules), "imported although recording is off"
"""


@dataclass(frozen=True)
class Traced(Ended):
    """How a program ended, and its traces."""

    traces: dict[str, list[dict[str, Any]]]
    other_files: list[str]
    folder: Path


def run(folder: Path, name: str, program: str, **environment: str) -> Traced:
    script = folder / f"{name}.py"
    script.write_text(program)
    traces = folder / f"{name}-traces"
    starts = start if name in OWN_PROCESS else start_forked
    process = starts(folder, str(script), PROFKIT_DIR=str(traces), **environment)
    trace_files: dict[str, list[dict[str, Any]]] = {}
    other_files = []
    for path in sorted(traces.rglob("*")):
        if path.name.endswith(".pt.trace.json.gz"):
            content = json.loads(gzip.decompress(path.read_bytes()))
            trace_files.setdefault(path.parent.name, []).append(content)
        elif path.is_file():
            other_files.append(path.name)
    return Traced(process.code, process.out, process.err, trace_files, other_files, folder)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced]:
    """All programs, two at a time."""
    folder = tmp_path_factory.mktemp("programs")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {
            name: pool.submit(run, folder, name, START + program)
            for name, program in PROGRAMS.items()
        }
        futures["off"] = pool.submit(run, folder, "off", RECORDING_OFF, PROFKIT="0")
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in {"fork", "chdir"}])
def test_the_trace_is_written_however_the_program_ends(ended: dict[str, Traced], name: str) -> None:
    run = ended[name]
    assert list(run.traces) == ["step"], run.err
    (trace,) = run.traces["step"]
    assert any(event["name"] == "aten::matmul" for event in trace["traceEvents"])
    assert run.other_files == []


def test_sigterm_ends_the_program_with_its_own_wait_status(ended: dict[str, Traced]) -> None:
    run = ended["sigterm"]
    assert run.code == -signal.SIGTERM
    assert run.out == "in the block\n", "which ends first: its recording is stopped there"
    assert run.traces["step"][0]["profkit"]["stopped_by"] == "SIGTERM"


def test_sigterm_while_a_trace_is_written_is_deferred_until_it_is_written(
    ended: dict[str, Traced],
) -> None:
    run = ended["sigterm-while-writing"]
    assert (run.code, run.out) == (-signal.SIGTERM, "")


def test_a_relative_folder_starts_where_the_block_started(
    ended: dict[str, Traced],
) -> None:
    run = ended["chdir"]
    assert run.code == 0, run.err
    assert list((run.folder / "here-traces" / "step").iterdir())


def test_the_programs_own_sigterm_handler_is_called_and_restored(
    ended: dict[str, Traced],
) -> None:
    run = ended["sigterm-own-handler"]
    assert (run.code, run.out) == (0, "own handler\ncontinues\n"), run.err


def test_a_program_that_ignores_sigterm_is_recorded_to_its_end(ended: dict[str, Traced]) -> None:
    run = ended["sigterm-ignored"]
    assert (run.code, run.out) == (0, "continues\n"), run.err
    assert run.traces["step"][0]["profkit"]["stopped_by"] == ""


def test_ctrl_c_ends_the_program(ended: dict[str, Traced]) -> None:
    run = ended["interrupt"]
    assert run.code == -signal.SIGINT
    assert run.out == ""
    assert "KeyboardInterrupt" in run.err
    assert run.traces["step"][0]["profkit"]["stopped_by"] == "KeyboardInterrupt"


def test_sys_exit_has_its_exit_code(ended: dict[str, Traced]) -> None:
    assert ended["exit"].code == 7


def test_a_block_without_an_end_is_written_at_exit(
    ended: dict[str, Traced],
) -> None:
    run = ended["never-ended"]
    assert run.code == 0, run.err
    assert run.traces["step"][0]["profkit"]["stopped_by"] == "exit"


def test_a_forked_child_does_not_write_or_stop_the_parents_recording(
    ended: dict[str, Traced],
) -> None:
    run = ended["fork"]
    assert run.code == 0, run.err
    assert {name: len(traces) for name, traces in run.traces.items()} == {
        "afterwards": 1,
        "step": 1,
    }
    assert run.err.count("warning") == 0


def test_a_loaders_forked_workers_do_not_disturb_the_recording(
    ended: dict[str, Traced],
) -> None:
    assert ended["loader-workers"].code == 0, ended["loader-workers"].err


def test_with_recording_off_nothing_is_imported_or_written(ended: dict[str, Traced]) -> None:
    run = ended["off"]
    assert (run.code, run.out, run.err) == (0, "", "")
    assert run.traces == {}
