"""Whole programs, bare and under ``profkit run``: same output, same end, no false warning.

``make test-programs`` runs them, and writes what it found to ``build/programs.json``.
"""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.programs.table import ANYWHERE, PROGRAMS, Expected

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]
RESULTS: Final = ROOT / "build" / "programs.json"

pytestmark = pytest.mark.programs


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        cpu_s: Processor time of it and its children.
    """

    code: int
    out: str
    err: str
    cpu_s: float


def run(command: list[str], folder: Path) -> Ended:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PROFKIT_DIR": "t"}
    environment["PYTHONPATH"] = str(ROOT)
    out, err = folder / "out", folder / "err"
    with out.open("wb") as to, err.open("wb") as errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=to, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = used.ru_utime + used.ru_stime
    return Ended(process.returncode, out.read_text(), err.read_text(), cpu_s)


def command_of(name: str, expected: Expected) -> list[str]:
    """Return the program's arguments for ``python`` and for ``profkit run``."""
    if expected.how == "module":
        return ["-m", name, *expected.args]
    file = FOLDER / f"{name}.py"
    if not file.exists():  # one file with several arguments
        file = FOLDER / f"{name.removesuffix(f'_{expected.args[0]}')}.py"
    return [str(file), *expected.args]


def note(name: str, **found: Any) -> None:  # noqa: ANN401
    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**results, name: found}, indent=1, sort_keys=True))
    print(name, found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_without_profkit_and_is_reported_rightly(
    name: str, tmp_path: Path
) -> None:
    expected = PROGRAMS[name]
    for package in expected.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make test-programs installs it")
    program = command_of(name, expected)
    bare = run([sys.executable, *program], tmp_path)
    report_file = tmp_path / "report.json"
    profkit = [sys.executable, "-m", "profkit", "run", "--json", str(report_file)]

    watched = run([*profkit, *program], tmp_path)
    assert bare.code == 0, bare.err

    report = json.loads(report_file.read_text()) if report_file.exists() else None
    assert report is not None, watched.err
    memory = report["summary"]["memory"] or {}
    steps = memory.get("n_monitored_steps")
    rules = {finding["name"] for finding in report["findings"]}
    note(
        name,
        exit_codes=[bare.code, watched.code],
        same_output=bare.out == watched.out,
        cpu_s=[round(bare.cpu_s, 1), round(watched.cpu_s, 1)],
        cpu_ratio=round(watched.cpu_s / bare.cpu_s, 2),
        steps=steps,
        definition=report["source"]["step_definition"],
        findings=sorted(rules),
    )
    assert (watched.code, watched.out) == (bare.code, bare.out)
    assert "Traceback" not in watched.err, watched.err
    assert "profkit/capture" not in json.dumps(report["findings"])
    assert rules <= {*expected.may, *ANYWHERE}, "a false alarm"

    if expected.steps is None:
        assert steps is None
    else:  # fewer where the processor time of monitoring is spent
        assert 0 < steps <= expected.steps
    if expected.definition:
        assert report["source"]["step_definition"] == expected.definition
