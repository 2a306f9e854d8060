"""The benchmark of replaying measures what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.replay import CASES, ROOT, write
from profkit.engine.context import Context
from profkit.model.change import ProgramChange
from tests.traces import load_trace


@pytest.mark.parametrize("case", CASES)
def test_a_recording_of_each_case_replays_as_recorded(case: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    write(path, CASES[case](3000))
    ctx = Context(trace=load_trace(path))
    replay = ctx.replay
    assert len(ctx.launches.work) > 500
    assert replay.length_ns(replay.replay(ProgramChange())) == replay.recorded_ns > 0


@pytest.mark.slow
def test_the_benchmark_of_replaying_prints_each_case_and_the_targets() -> None:
    command = [sys.executable, "benchmarks/replay.py", "--events", "2000", "--case", "streams"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output(command, cwd=ROOT, env=settings, text=True)
    assert re.findall(r"^streams +2,000 ", output, re.MULTILINE)
    assert "of reading: " in output
