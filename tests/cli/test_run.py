"""``profkit run`` profiles unchanged programs, each in a process of its own."""

import concurrent.futures
import gzip
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.capture.needs import needs_all_threads
from tests.processes import Ended, start, start_forked
from tests.step_counts import count_steps

GAN = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader

data = DataLoader(torch.randn(400, 8), batch_size=4)
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.Adam(maker.parameters())

def main():
    for i, batch in enumerate(data):
        loss = judge(maker(batch)).mean()
        loss.backward()
        if i % 2:  # two batches make a step
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
            print(loss.item())  # the item

if __name__ == "__main__":
    main()
    print(sys.argv[1:], __name__, __file__)
    sys.exit(7)
"""

PROGRAMS = {
    "gan": GAN,
    "raises": """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(n):
    for i in range(n):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    raise ValueError("after all steps")

with torch.profiler.record_function("training"):  # open whenever a recording stops
    train(12)
""",
    "inference": """\
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4)
with torch.no_grad():
    for batch in DataLoader(torch.randn(40, 4), batch_size=2):
        model(batch).argmax().item()
""",
    "no-steps": """\
import torch
torch.ones(100).cumsum(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
for _ in range(5):
    model(torch.ones(2, 4))
    torch.ones(3).exp()
""",
    "threads": """\
import subprocess, sys, threading
import torch
first = threading.Thread(target=lambda: torch.ones(50, 50).exp())
first.start()
first.join()
spin = "import time\\nwhile time.process_time() < 1: pass"
subprocess.run([sys.executable, "-c", spin], check=True)
""",
    "terminated": """\
import os, signal
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if i == 20:
        os.kill(os.getpid(), signal.SIGTERM)
print("never")
""",
    "no-torch": """\
import sys
assert "torch" not in sys.modules
print("plain", sys.path[0], sys.argv)
""",
    "closes-stdout": """\
import sys
print("last words")
sys.stdout.close()
""",
}


@dataclass(frozen=True)
class Watched(Ended):
    """How a program under ``profkit run`` ended, and its files."""

    report: dict[str, Any] | None
    trace: dict[str, Any] | None
    script: Path


def run(folder: Path, *command: str, script: Path) -> Watched:
    report, traces = folder / "report.json", folder / "traces"
    files = ("--dir", str(traces), "--json", str(report))
    starts = start_forked if "import torch" in script.read_text() else start
    process = starts(folder, "-m", "profkit", "run", *files, *command)
    paths = sorted(traces.rglob("*.pt.trace.json.gz"))
    assert len(paths) <= 1, "one program leaves one trace"
    return Watched(
        process.code,
        process.out,
        process.err,
        json.loads(report.read_text()) if report.exists() else None,
        json.loads(gzip.decompress(paths[0].read_bytes())) if paths else None,
        script,
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Watched]:
    """All programs, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {}
        for name, text in PROGRAMS.items():
            folder = tmp_path_factory.mktemp(name)
            script = folder / f"{name}.py"
            script.write_text(text)
            futures[name] = pool.submit(run, folder, str(script), "--lr", "1", script=script)

        folder = tmp_path_factory.mktemp("module")
        package = folder / "package"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "train.py").write_text("from . import __name__ as up\n" + GAN)
        futures["module"] = pool.submit(
            run, folder, "-m", "package.train", "--wait", "9", script=package / "train.py"
        )
        return {name: future.result() for name, future in futures.items()}


def annotations(trace: dict[str, Any] | None, start: str) -> list[str]:
    assert trace is not None
    rows = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    return [e["name"] for e in rows if e["name"].startswith(start)]


def test_the_program_runs_as_under_python(ended: dict[str, Watched]) -> None:
    run = ended["gan"]
    assert run.code == 7, run.err
    assert run.out.splitlines()[-1] == f"['--lr', '1'] __main__ {run.script}"
    assert len(run.out.splitlines()) == 51, "its output is its own"


def test_steps_follow_the_first_optimizer(
    ended: dict[str, Watched],
) -> None:
    run = ended["gan"]
    assert run.trace is not None
    assert run.trace["profkit"]["steps"] == "optimizer"
    assert len(annotations(run.trace, "ProfilerStep#")) == 3
    assert len(annotations(run.trace, "enumerate(DataLoader)")) == 6
    assert annotations(run.trace, "Optimizer.step#SGD") == ["Optimizer.step#SGD.step"] * 3


def test_the_report_has_the_source_lines_of_reads_and_is_written_as_json(
    ended: dict[str, Watched],
) -> None:
    run = ended["gan"]
    line = 1 + next(i for i, text in enumerate(GAN.splitlines()) if "# the item" in text)
    assert run.report is not None
    syncs = run.report["summary"]["sync_lines"]
    assert [place["location"]["line"] for place in syncs] == [line]
    assert count_steps(run.report["summary"]) == 3
    assert run.report["source"]["lines_from"] == "other-step"


def test_a_traceback_has_only_the_programs_frames(ended: dict[str, Watched]) -> None:
    run = ended["raises"]
    assert run.code == 1
    report, _, last = run.err.rpartition("Traceback")
    traceback = last.splitlines()
    assert traceback[1].strip() == f'File "{run.script}", line 12, in <module>'
    assert traceback[-1] == "ValueError: after all steps"
    assert "profkit" not in last
    assert run.report is not None, "what was recorded is reported all the same"
    assert run.report["summary"]["steps"], "although a region around all of them is open"
    assert "Traceback" not in report
    assert len(report.splitlines()) < 15, "it does not fill the screen"


def test_without_an_optimizer_the_steps_are_dataloader_iterations(
    ended: dict[str, Watched],
) -> None:
    run = ended["inference"]
    assert run.code == 0, run.err
    assert run.trace is not None
    assert run.trace["profkit"]["steps"] == "loader"
    assert len(annotations(run.trace, "ProfilerStep#")) == 3
    assert len(annotations(run.trace, "enumerate(DataLoader)")) == 3


@needs_all_threads
def test_without_steps_the_run_is_recorded_as_a_whole(ended: dict[str, Watched]) -> None:
    run = ended["no-steps"]
    assert run.code == 0, run.err
    assert run.trace is not None
    about = run.trace["profkit"]
    assert about["steps"] == "whole"
    assert about.get("lines") is None
    names = [e["name"] for e in run.trace["traceEvents"] if e.get("cat") == "cpu_op"]
    assert (names.count("aten::cumsum"), names.count("aten::exp")) == (1, 5)


def test_torch_that_records_one_thread_alone_says_why_a_run_without_steps_has_no_trace(
    tmp_path: Path,
) -> None:
    program = """\
from profkit.capture.recording import harmless_kinds
harmless_kinds.all_threads_setting = lambda: None
import torch
print(torch.ones(3).sum())
"""
    ended = start_forked(tmp_path, "-m", "profkit", "run", "-c", program)
    assert (ended.code, ended.out) == (0, "tensor(3.)\n")
    assert "before a step was recorded, and this version of torch cannot record" in ended.err
    assert not list(tmp_path.rglob("*.pt.trace.json.gz"))


@needs_all_threads
def test_operators_of_threads_are_recorded_and_time_of_child_processes(
    ended: dict[str, Watched],
) -> None:
    run = ended["threads"]
    assert run.code == 0, run.err
    assert run.trace is not None
    assert run.report is not None
    names = [e["name"] for e in run.trace["traceEvents"] if e.get("cat") == "cpu_op"]
    assert "aten::exp" in names
    assert run.report["summary"]["steps"] == []
    cpu = run.report["source"]["cpu"]
    assert cpu["children_ns"] >= 950_000_000
    assert cpu["thread_ns"] < cpu["window_ns"] / 2


def test_sigterm_writes_the_files_and_the_report(ended: dict[str, Watched]) -> None:
    run = ended["terminated"]
    assert run.code == -signal.SIGTERM
    assert run.out == ""
    assert run.report is not None
    assert count_steps(run.report["summary"]) == 3


def test_a_program_without_torch_runs_unchanged(ended: dict[str, Watched]) -> None:
    run = ended["no-torch"]
    assert run.code == 0, run.err
    assert run.out == f"plain {run.script.parent} {[str(run.script), '--lr', '1']}\n"
    assert "did not import torch" in run.err
    assert run.trace is None


def test_a_program_may_close_its_stdout(ended: dict[str, Watched]) -> None:
    run = ended["closes-stdout"]
    assert (run.code, run.out) == (0, "last words\n"), run.err


def test_a_module_runs_with_its_package_and_its_own_options(ended: dict[str, Watched]) -> None:
    run = ended["module"]
    assert run.code == 7, run.err
    assert run.out.splitlines()[-1] == f"['--wait', '9'] __main__ {run.script}"
    assert run.trace is not None
    assert run.trace["profkit"]["name"] == "package.train"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("--active", "0", "x.py"), "--active"),
        ((), "Missing argument"),
    ],
)
def test_programs_that_cannot_be_run_are_usage_errors(
    command: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from profkit.cli.main import main

    before = list(sys.argv), list(sys.path)
    try:
        assert main(["run", *command]) == 2
    finally:
        sys.argv[:], sys.path[:] = before
    assert sentence in capsys.readouterr().err


def test_a_bug_in_the_report_leaves_the_exit_code_to_the_program(tmp_path: Path) -> None:
    program = """\
import sys, torch, profkit.analysis.study as own
own.study = None
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(10):
    weight.sum().backward()
    optimizer.step()
sys.exit(7)
"""
    ended = start_forked(tmp_path, "-m", "profkit", "run", "-c", program)
    assert ended.code == 7
    assert "this is a bug in profkit" in ended.err


def test_ctrl_c_during_the_report_leaves_the_program_its_exit_code(tmp_path: Path) -> None:
    source = """\
import os, signal, threading
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
raise SystemExit(3)
"""
    ended = start_forked(tmp_path, "-m", "profkit", "run", "-c", source)
    assert ended.code == 3, ended.err
    assert "KeyboardInterrupt" not in ended.err
