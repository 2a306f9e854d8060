"""``profkit.memory`` monitors a block."""

from pathlib import Path

import pytest
import torch

import profkit
from profkit.capture.memory import scope
from profkit.capture.memory.cuda import oom
from profkit.capture.memory.monitor.budget import OVERDUE
from profkit.capture.recording import current
from tests.capture.memory.fake_cuda import FakeCuda

KEPT: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    KEPT.clear()
    scope._n_monitored.clear()


def leak() -> None:
    KEPT.append(torch.zeros(4096))


def test_a_block_has_a_timeline_leaks_and_a_report(tmp_path: Path) -> None:
    with profkit.memory("epoch", dir=str(tmp_path), quiet=True) as m:
        for _ in range(20):
            leak()
            m.step()
    assert m.path is not None
    assert Path(m.path).parent == tmp_path / "epoch"
    assert m.path.endswith(".memory.json.gz")

    steps = [sample.step for sample in m.timeline]
    # On a busy machine not every step is measured, but one is by each so much later.
    assert (steps[0], steps) == (1, sorted(set(steps)))
    assert 20 / OVERDUE < steps[-1] <= 20
    assert m.leaks[0].per_step_bytes == 16384
    assert m.report is not None
    assert [finding.name for finding in m.report.findings] == ["growing-container"]
    assert "KEPT" in str(m.report)


def test_steps_of_a_trace_inside_the_block_count(tmp_path: Path) -> None:
    with profkit.memory("outer", dir=str(tmp_path), quiet=True) as m:
        for _ in profkit.steps(range(15), "inner", quiet=True, wait=20):
            torch.zeros(10)
    # On a busy machine not every step is measured, but one is by each so much later.
    assert 15 / OVERDUE < m.timeline[-1].step <= 15


def test_optimizer_steps_count_if_the_program_reports_none(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with profkit.memory("found", dir=str(tmp_path), quiet=True) as m:
        for _ in range(10):
            weight.sum().backward()
            optimizer.step()
    assert 10 / OVERDUE < m.timeline[-1].step <= 10


def test_a_block_without_steps_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with profkit.memory("once", dir=str(tmp_path), quiet=True) as m:
            leak()
    assert (m.path, m.snapshot, m.report, m.timeline) == (None, None, None, ())
    stderr = capsys.readouterr().err
    assert stderr.count("found no steps in “once”") == 1
    assert "Call its step() at the end of each step" in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_block_without_steps_writes_the_cuda_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setattr(oom, "_attached", set())
    with profkit.memory("once", dir=str(tmp_path), quiet=True) as m:
        fake.allocate(4096)
    assert m.path is None
    assert m.snapshot is not None
    assert list((tmp_path / "once").iterdir()) == [Path(m.snapshot)]
    assert m.report is not None
    assert m.report.source.kind == "snapshot"
    assert f"profkit analyze {m.snapshot}" in capsys.readouterr().err


def test_an_error_in_a_block_without_steps_suppresses_the_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyError), profkit.memory("once", dir=str(tmp_path)):
        raise KeyError
    assert capsys.readouterr().err == ""


def test_a_decorated_function_is_monitored_up_to_its_limit(tmp_path: Path) -> None:
    @profkit.memory("call", dir=str(tmp_path), quiet=True, limit=2)
    def epoch(n: int) -> int:
        with profkit.trace("none", limit=0) as t:
            for _ in range(n):
                t.step()
        return n

    assert [epoch(n) for n in (3, 4, 5)] == [3, 4, 5]
    assert len(list(tmp_path.rglob("*.memory.json.gz"))) == 2


def test_an_exception_propagates_and_the_samples_are_written(tmp_path: Path) -> None:
    block = profkit.memory("broken", dir=str(tmp_path), quiet=True)

    def program() -> None:
        with block:
            block.step()
            raise KeyError("the user's")

    with pytest.raises(KeyError):
        program()
    assert block.path is not None
    assert Path(block.path).exists()


def test_nothing_is_monitored_when_profkit_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current.state, "is_on", False)

    def function() -> None: ...

    assert profkit.memory(function) is function
    assert profkit.no_leak()(function) is function
    with profkit.memory("off") as m, profkit.no_leak():
        m.step()
    assert (m.path, m.snapshot, m.report, m.timeline, m.leaks) == (None, None, None, (), ())


def test_a_name_must_be_a_string() -> None:
    with pytest.raises(profkit.errors.UsageError, match="must be a string"):
        profkit.memory(3)  # type: ignore[call-overload]
