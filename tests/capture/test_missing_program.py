"""A missing program leaves no hooks or files."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import dataloader

import profkit
from profkit.capture.process.program import CannotStartError
from profkit.capture.recording.options import DEFAULTS
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.run.plan import Plan
from profkit.capture.run.run import ProgramTarget, run


@pytest.mark.parametrize(
    "target",
    [
        ProgramTarget("no/such.py"),
        pytest.param(ProgramTarget("no.such", kind="module"), marks=pytest.mark.slow),
    ],
)
def test_a_missing_program_leaves_no_hooks_or_files(
    target: ProgramTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dataloader._BaseDataLoaderIter.__next__
    with pytest.raises(CannotStartError, match=r"no.such"):
        run(target, Plan(target.title, DEFAULTS, DEFAULT_SCHEDULE))
    assert dataloader._BaseDataLoaderIter.__next__ is before
    assert not torch.autograd.profiler._is_profiler_enabled
    assert list(tmp_path.rglob("*")) == []
    with profkit.trace(f"after {target.title}", quiet=True) as after:
        torch.ones(2).sum()
    assert after.path is not None
    assert Path(after.path).exists()
