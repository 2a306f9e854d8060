"""The programs of ``examples/ranks`` under ``profkit run``: the problem found, the fix not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from traces.recordings import fault_line

PROGRAMS = Path(__file__).parents[2] / "examples" / "ranks"
EXPECTED: dict[str, dict[str, Any]] = json.loads((PROGRAMS / "expected.json").read_text())
LIMIT_S = 300


def findings_of(name: str, folder: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Run a program on its ranks, and return the findings by rule."""
    program = str(PROGRAMS / f"{name}.py")
    report = folder / f"report{len(arguments)}.json"
    n_ranks = str(EXPECTED[name].get("ranks", 2))
    launched = ["torchrun", "--standalone", "--nproc-per-node", n_ranks, program, *arguments]
    command = [sys.executable, "-m", "profkit", "run", "--json", str(report), *launched]
    environment = os.environ | {"PROFKIT_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=LIMIT_S)
    findings = json.loads(report.read_text())["findings"]
    return {finding["name"]: finding for finding in findings}


def test_the_table_lists_exactly_the_programs() -> None:
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_the_problem_is_found_and_the_fix_has_no_such_finding(name: str, tmp_path: Path) -> None:
    rule = EXPECTED[name]["rule"]
    finding = findings_of(name, tmp_path)[rule]
    # Threads and links have no line of their own.
    line = fault_line((PROGRAMS / f"{name}.py").read_text())
    places = [(Path(place["file"]).stem, place["line"]) for place in finding["locations"]]
    assert places == ([(name, line)] if EXPECTED[name].get("has_line", True) else [])
    assert finding["cost"]["ns"] > 0
    assert rule not in findings_of(name, tmp_path, "--cured")
