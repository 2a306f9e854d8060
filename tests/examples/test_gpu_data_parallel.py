"""``examples/gpu/data_parallel.py`` on a CPU: what it costs cannot show there, its line can."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.engine.context import Context
from profkit.index.ranks.data_parallel import data_parallel_calls
from tests.traces import load_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "gpu" / "data_parallel.py"
FAULT = PROGRAM.read_text().split("# fault:")[0].count("\n") + 1
SMALL = ["--device", "cpu", "--warm-up", "1", "--steps", "10", "--scale", "0.02"]


def test_the_wrapper_is_seen_at_the_line_of_its_call_and_not_judged(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "profkit",
            "run",
            "--dir",
            str(tmp_path),
            "--json",
            str(report),
            str(PROGRAM),
            *SMALL,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    (trace,) = tmp_path.rglob("*.pt.trace.json.gz")
    ctx = Context(trace=load_trace(trace))

    calls = data_parallel_calls(ctx.events, ctx.tree)
    assert len(calls) == 3

    places = [ctx.location(int(row)) for row in calls]
    assert {(Path(str(place.file)).name, place.line) for place in places} == {(PROGRAM.name, FAULT)}
    told = json.loads(report.read_text())
    assert "COM002" not in {finding["rule"] for finding in told["findings"]}
    assert "COM002" in {check["rule"] for check in told["unchecked"]}
