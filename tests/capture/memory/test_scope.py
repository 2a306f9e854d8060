"""``profkit.memory`` watches a block, and ``profkit.no_leak`` refuses what grows in it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import profkit
from profkit.capture import current
from profkit.capture.memory import scope
from profkit.capture.memory.cuda import oom
from tests.capture.memory.fake_cuda import FakeCuda

KEPT: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    KEPT.clear()
    scope._n_written.clear()


def leak() -> None:
    KEPT.append(torch.zeros(4096))


def test_a_block_tells_its_timeline_what_grows_and_its_report(tmp_path: Path) -> None:
    with profkit.memory("epoch", dir=str(tmp_path), quiet=True) as m:
        for _ in range(20):
            leak()
            m.step()
    assert m.path is not None
    assert Path(m.path).parent == tmp_path / "epoch"
    assert m.path.endswith(".memory.json.gz")
    assert [look.step for look in m.timeline] == list(range(1, 21))
    assert m.leaks[0].per_step_bytes == 16384
    assert m.report is not None
    assert [one.name for one in m.report.findings] == ["growing-container"]
    assert "KEPT" in str(m.report)


def test_steps_of_a_trace_within_are_its_steps(tmp_path: Path) -> None:
    with profkit.memory("outer", dir=str(tmp_path), quiet=True) as m:
        for _ in profkit.steps(range(15), "inner", quiet=True, wait=20):
            torch.zeros(10)
    assert m.timeline[-1].step == 15


def test_without_any_word_the_optimizers_steps_are_the_steps(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with profkit.memory("found", dir=str(tmp_path), quiet=True) as m:
        for _ in range(10):
            weight.sum().backward()
            optimizer.step()
    assert m.timeline[-1].step == 10


def test_a_block_without_steps_says_once_that_growth_needs_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with profkit.memory("once", dir=str(tmp_path), quiet=True) as m:
            leak()
    assert (m.path, m.snapshot, m.report, m.timeline) == (None, None, None, ())
    said = capsys.readouterr().err
    assert said.count("saw no step end in “once”") == 1
    assert "Steps end with its step()" in said
    assert list(tmp_path.iterdir()) == []


def test_a_block_without_steps_keeps_what_cuda_s_allocator_did(
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


def test_an_error_in_a_block_without_steps_is_all_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyError), profkit.memory("once", dir=str(tmp_path)):
        raise KeyError
    assert capsys.readouterr().err == ""


def test_a_decorated_function_is_watched_as_often_as_its_limit_says(tmp_path: Path) -> None:
    @profkit.memory("call", dir=str(tmp_path), quiet=True, limit=2)
    def epoch(n: int) -> int:
        with profkit.trace("none", limit=0) as t:
            for _ in range(n):
                t.step()
        return n

    assert [epoch(n) for n in (3, 4, 5)] == [3, 4, 5]
    assert len(list(tmp_path.rglob("*.memory.json.gz"))) == 2


def test_an_exception_passes_and_what_was_seen_is_written(tmp_path: Path) -> None:
    block = profkit.memory("broken", dir=str(tmp_path), quiet=True)

    def program() -> None:
        with block:
            block.step()
            raise KeyError("the user's")

    with pytest.raises(KeyError):
        program()
    assert block.path is not None
    assert Path(block.path).exists()


def test_switched_off_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "is_on", False)

    def function() -> None: ...

    assert profkit.memory(function) is function
    assert profkit.no_leak()(function) is function
    with profkit.memory("off") as m, profkit.no_leak():
        m.step()
    assert (m.path, m.snapshot, m.report, m.timeline, m.leaks) == (None, None, None, (), ())


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(profkit.errors.UsageError, match="is a text"):
        profkit.memory(3)  # type: ignore[call-overload]


def loop(body: Callable[[], None], guard: object, n_steps: int = 25) -> None:
    with guard as guarded:  # type: ignore[attr-defined]
        for _ in range(n_steps):
            body()
            guarded.step()


def test_a_leak_is_an_error_that_names_line_pace_and_holder() -> None:
    with pytest.raises(profkit.LeakError) as caught:
        loop(leak, profkit.no_leak())
    text = str(caught.value)
    assert "16.0 KiB" in text
    assert "KEPT[" in text
    assert f"{Path(__file__).name}:" in text
    assert caught.value.exit_code == 4
    assert len(caught.value.leaks) == 1


def test_what_does_not_grow_passes() -> None:
    loop(lambda: KEPT.__setitem__(slice(None), [torch.zeros(4096)]), profkit.no_leak())
    assert len(KEPT) == 1


def test_growth_that_is_allowed_passes() -> None:
    loop(leak, profkit.no_leak(allowed_bytes=16384))
    with pytest.raises(profkit.LeakError):
        loop(leak, profkit.no_leak(allowed_bytes=16383))


def test_an_error_of_the_block_goes_first() -> None:
    def program() -> None:
        with profkit.no_leak() as guard:
            for _ in range(20):
                leak()
                guard.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


def test_too_few_steps_are_said_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    loop(leak, profkit.no_leak(), 3)
    assert "no_leak saw 3 steps" in capsys.readouterr().err


def test_a_guarded_function_raises_at_the_call_that_makes_it_certain() -> None:
    guarded = profkit.no_leak()(leak)
    for _ in range(15):
        guarded()
    with pytest.raises(profkit.LeakError):
        guarded()
