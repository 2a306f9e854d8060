"""The programs of ``examples/gpu`` that compile, recorded on a CPU: the fault found, the cure not.

Each is recorded in a process of its own: what a compiler keeps would be there for those that come
after, and after one that stopped inside a region profkit records no other.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from profkit.api import analyze
from profkit.model.report import Report
from tests.traces import load_trace

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = ROOT / "examples" / "gpu"
EXPECTED: Final[dict[str, dict[str, Any]]] = json.loads((PROGRAMS / "expected.json").read_text())
NAMES: Final = ("recompiles", "graph_breaks")
RULES: Final = ("recompiles", "graph-breaks")
SMALL: Final = (
    "--warm-up", "1", "--steps", "7", "--scale", "0.02", "--device", "cpu",
)  # fmt: skip
WHOLE: Final = """
import torch
network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
compiled = torch.compile(network, backend='eager', fullgraph=True)
for _ in range(8):
    compiled(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""
RECORDS: Final = """
import sys
import torch
from profkit.capture.recording.options import Options
from profkit.capture.run.plan import Plan
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.run.run import ProgramTarget, run

torch.set_num_threads(1)
folder, name, program, *arguments = sys.argv[1:]
plan = Plan(name, Options(folder=folder, quiet=True), DEFAULT_SCHEDULE)
ended = run(ProgramTarget(program, arguments), plan)
assert ended.error is None, ended.error
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of the traces, and what was written to stderr."""
    folder = tmp_path_factory.mktemp("compiled")
    whole = folder / "whole.py"
    whole.write_text(WHOLE)
    programs = {"whole": [str(whole)]}

    for name in NAMES:
        backend = ["--backend", "eager"] if name == "recompiles" else []
        for cure in ([], ["--cured"]):
            arguments = [str(PROGRAMS / f"{name}.py"), *SMALL, *backend, *cure]
            programs["".join([name, *cure])] = arguments
    written = ""
    for name, arguments in programs.items():
        finished = subprocess.run(
            [sys.executable, "-W", "default", "-c", RECORDS, str(folder), name, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        written += finished.stderr

    return folder, written


def trace_of(recorded: tuple[Path, str], name: str) -> Path:
    (path,) = (recorded[0] / name).glob("*.pt.trace.json.gz")
    return path


def report_of(recorded: tuple[Path, str], name: str) -> Report:
    return analyze(trace_of(recorded, name), select=RULES, strict=True)


def line_of(name: str) -> int:
    lines = (PROGRAMS / f"{name}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if "# fault:" in line)


@pytest.mark.parametrize("name", NAMES)
def test_the_fault_is_found_at_its_line_and_alone(recorded: tuple[Path, str], name: str) -> None:
    report = report_of(recorded, name)
    assert [finding.name for finding in report.findings] == [EXPECTED[name]["rule"]]
    place = report.findings[0].locations[0]
    assert (place.file, place.line) == (str(PROGRAMS / f"{name}.py"), line_of(name))
    assert not report.unchecked


@pytest.mark.parametrize("name", NAMES)
def test_the_cure_is_silent(recorded: tuple[Path, str], name: str) -> None:
    assert report_of(recorded, f"{name}--cured").findings == ()


def test_recompiles_are_counted_timed_and_explained(recorded: tuple[Path, str]) -> None:
    report = report_of(recorded, "recompiles")
    (finding,) = report.findings
    assert finding.n == len(report.summary.steps) > 0
    assert finding.severity == "warning"
    assert "“tensor 'args[0]' size mismatch at index 0. expected " in finding.message
    assert "dynamic=True" in finding.fix

    # Against the rows as torch wrote them: the outermost ones of each recorded step.
    events = load_trace(trace_of(recorded, "recompiles")).to_pandas()
    steps = events[events.name.str.startswith("ProfilerStep")]
    whole = events[events.name == "dynamo"]
    inside = [
        row.dur_ns
        for row in whole.itertuples()
        if ((steps.ts_ns <= row.ts_ns) & (row.ts_ns < steps.ts_ns + steps.dur_ns)).any()
    ]
    assert len(inside) == finding.n
    assert finding.cost.ns == sum(inside)


def test_graph_breaks_are_counted_and_explained(recorded: tuple[Path, str]) -> None:
    report = report_of(recorded, "graph_breaks")
    (finding,) = report.findings
    # Six layers in each step, each of which falls into two.
    assert finding.n == 6 * len(report.summary.steps) > 0
    assert finding.evidence["n_graphs"] == 2 * finding.n
    assert "logg" in finding.message.lower()
    assert finding.fix.startswith("Log outside the compiled function.")


def test_a_program_that_allows_no_graph_break_is_recorded(recorded: tuple[Path, str]) -> None:
    assert report_of(recorded, "whole").findings == ()


@pytest.mark.parametrize("name", NAMES)
def test_recording_changes_nothing_of_what_is_compiled(
    recorded: tuple[Path, str], name: str
) -> None:
    """No graph ends because of profkit, and nothing is compiled anew because of it."""
    capture = load_trace(trace_of(recorded, f"{name}--cured")).capture
    assert capture is not None
    assert capture.compiles is not None
    assert len(capture.compiles.compiled) == (1 if name == "graph_breaks" else 2)
    assert capture.compiles.breaks == []
    assert "hooks" not in recorded[1]
    broken = load_trace(trace_of(recorded, name)).capture
    assert broken is not None
    assert broken.compiles is not None
    files = {place[0] for graph_break in broken.compiles.breaks for place in graph_break.stack}
    assert not any("profkit" in Path(file).parts[-3:-1] for file in files)
