"""``profkit.memory`` counts host-device syncs, and the report has them."""

from pathlib import Path

import pytest
import torch

import profkit
from profkit.model.live_memory import SyncSite
from profkit.model.location import Frame
from profkit.testing import LiveBuilder
from tests.capture.syncs.conftest import ONE, FakeSyncMode

STEPS = 12


def sync() -> float:
    return float(torch.std(ONE))


@pytest.mark.usefixtures("cuda")
def test_the_report_of_a_monitored_block_has_the_lines_that_synchronized(tmp_path: Path) -> None:
    with profkit.memory("train", dir=str(tmp_path), quiet=True) as m:
        for step in range(STEPS):
            sync()
            if step % 4 == 0:
                with profkit.allow_sync("to log"):
                    sync()
            m.step()

    assert [(line.n_calls, line.allowed_reason) for line in m.sync_sites] == [
        (STEPS, None),
        (3, "to log"),
    ]
    assert m.report is not None
    assert m.report.summary.sync_sites is not None

    (most, allowed) = m.report.summary.sync_sites
    assert most.location is not None
    assert (most.location.file, most.location.function) == (__file__, "sync")
    assert (most.n_calls, allowed.n_calls) == (STEPS, 3)

    text = " ".join(str(m.report).split())
    line = sync.__code__.co_firstlineno + 1
    assert f"test_counted.py:{line}: 12 syncs in a synchronizing operation" in text
    assert "3 syncs in a synchronizing operation, allowed: to log" in text


def test_syncs_are_unknown_with_a_torch_without_cuda(tmp_path: Path) -> None:
    if hasattr(torch._C, "_cuda_set_sync_debug_mode"):
        pytest.skip("this torch is built with CUDA")
    with profkit.memory("train", dir=str(tmp_path), quiet=True) as m:
        for _ in range(STEPS):
            m.step()
    assert m.report is not None
    assert m.report.summary.sync_sites is None


def test_lines_with_most_calls_are_listed_first_and_the_rest_together(tmp_path: Path) -> None:
    lines = tuple(
        SyncSite("a synchronizing operation", Frame("train.py", n, "step"), 100 - n)
        for n in range(1, 9)
    )
    path = LiveBuilder(sync_sites=(*lines, SyncSite("an event", None, 1))).write(
        tmp_path / "train.memory.json"
    )
    text = " ".join(str(profkit.analyze(path)).split())
    assert "train.py:1: 99 syncs" in text
    assert "train.py:6" not in text
    assert "4 more lines: 280 syncs" in text
    whole = profkit.render(profkit.analyze(path), "csv", table="sync_sites").decode()
    assert len(whole.splitlines()) == 1 + 9


@pytest.mark.usefixtures("cuda")
def test_the_mode_is_off_again_after_the_block(cuda: FakeSyncMode, tmp_path: Path) -> None:
    with profkit.memory(dir=str(tmp_path), quiet=True) as m:
        assert cuda.mode == 1
        m.step()
    assert cuda.mode == 0
