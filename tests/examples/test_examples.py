"""Every example runs unchanged under ``profkit run``, and the report has the planted problem."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.capture.process.torch_features import shows_saved_tensors
from tests.processes import start_forked
from traces.record import EXAMPLES, PROGRAMS
from traces.recordings import fault_line

ROOT = Path(__file__).parents[2]
RULES = {name: facts.get("watched_rule", facts["rule"]) for name, facts in PROGRAMS.items()}
FAST = {"leak_losses_with_graph", "leak_cured"}
"""The pair that every change is tested with; the others are slow tests."""


def programs(*, faulty: bool) -> list[Any]:
    return [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name, rule in RULES.items()
        if bool(rule) == faulty
    ]


def report_on(name: str, folder: Path, *more: str) -> dict[str, Any]:
    """Run an example in a folder under ``profkit run``; its report."""
    program = [str(EXAMPLES / f"{name}.py"), *PROGRAMS[name]["arguments"], *more]
    options = ["--dir", "out", "--json", "report.json"]
    ended = start_forked(folder, "-m", "profkit", "run", *options, *program)
    assert ended.code == 0, ended.err
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["summary"]["steps"], ended.err
    return report


def test_the_table_lists_exactly_the_programs() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_does_not_use_profkit_and_marks_its_fault(name: str) -> None:
    program = (EXAMPLES / f"{name}.py").read_text()
    assert "import profkit" not in program
    # What costs nothing on a CPU is a fault on a GPU, and marked too.
    assert (fault_line(program) is not None) == bool(PROGRAMS[name]["planted"])
    assert program.count("# fault:") <= 1


@pytest.mark.parametrize("name", programs(faulty=True))
def test_the_planted_fault_is_found_at_its_line(name: str, tmp_path: Path) -> None:
    report = report_on(name, tmp_path)
    of_rule = [finding for finding in report["findings"] if finding["rule"] == RULES[name]]
    if not of_rule and not shows_saved_tensors():
        assert "what autograd graphs save" in " ".join(report["summary"]["memory"]["not_measured"])
        of_rule = [finding for finding in report["findings"] if finding["rule"] == "MEM004"]
    assert of_rule, report["findings"]
    places = [(Path(place["file"]).name, place["line"]) for place in of_rule[0]["locations"]]
    line = fault_line((EXAMPLES / f"{name}.py").read_text())
    assert places[0] == (f"{name}.py", line)
    # What is retained is counted by scans, of which a busy machine has few; other faults by step.
    if not RULES[name].startswith("MEM"):
        assert of_rule[0]["n"] >= len(report["summary"]["steps"]) - 1


@pytest.mark.parametrize("name", programs(faulty=False))
def test_a_fixed_program_has_no_findings(name: str, tmp_path: Path) -> None:
    report = report_on(name, tmp_path)
    assert report["findings"] == []


@pytest.mark.slow
def test_with_workers_no_batch_is_made_in_the_training_process(
    tmp_path: Path,
) -> None:
    report = report_on("starved_loader", tmp_path, "--workers", "2")
    loaders = [
        finding["evidence"]["loader"]
        for finding in report["findings"]
        if finding["rule"] == "DAT001"
    ]
    assert not [loader for loader in loaders if "SingleProcess" in loader]
