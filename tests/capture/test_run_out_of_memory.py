"""``profkit run`` of a program that runs out of CUDA memory: its own error, and a snapshot."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.memory.cuda import oom
from profkit.capture.recording.options import Options
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.run.plan import Plan
from profkit.capture.run.run import ProgramTarget, RunResult, run
from tests.capture.memory.fake_cuda import FakeCuda

PROGRAM = """
import os
import torch

os.chdir(os.path.dirname(__file__))
torch.cuda.fake.initialize()
torch.cuda.fake.allocate(4096)
try:
    torch.cuda.fake.run_out(1 << 40)
except torch.OutOfMemoryError:
    {then}
"""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(is_initialized=False)
    fake.install(monkeypatch)
    monkeypatch.setattr(oom, "_attached", set())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "fake", fake, raising=False)
    return fake


def ran(folder: Path, then: str, **plan: Any) -> RunResult:  # noqa: ANN401
    program = folder / "program" / "train.py"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(then=then))
    options = Options(folder="out", quiet=True)
    what = Plan("train", options, DEFAULT_SCHEDULE, record_trace=False, **plan)
    return run(ProgramTarget(str(program)), what)


def test_the_error_is_the_program_s_and_the_snapshot_is_in_the_report(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = ran(tmp_path, "raise")
    assert isinstance(outcome.error, torch.OutOfMemoryError)
    assert outcome.snapshot is not None
    assert Path(outcome.snapshot).parent == tmp_path / "out" / "train"
    assert outcome.snapshot in outcome.files
    report = profkit.analyze(outcome.files)
    assert report.summary.memory is not None
    (error,) = report.summary.memory.devices[0].oom
    assert error.bytes == 1 << 40
    assert not cuda.is_on
    assert cuda.requests[0][1] == "alloc"


def test_a_program_that_handles_the_error_has_a_snapshot_too(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = ran(tmp_path, "pass")
    assert outcome.error is None
    assert outcome.snapshot is not None
    assert not cuda.is_on


def test_without_memory_monitoring_no_history_is_recorded(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = ran(tmp_path, "pass", monitor_memory=False)
    assert outcome.snapshot is None
    assert cuda.requests == []
