"""Loops whose steps are marked by ``t.step()`` or ``profkit.steps``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import profkit
from profkit.errors import UsageError

Opened = Callable[[str | None], dict[str, Any]]


def work() -> None:
    torch.ones(4).exp()


def annotations(trace: dict[str, Any], start: str = "ProfilerStep") -> list[str]:
    rows = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    return [e["name"] for e in rows if e["name"].startswith(start)]


def n_ops(trace: dict[str, Any], name: str = "aten::exp") -> int:
    return sum(e.get("cat") == "cpu_op" and e["name"] == name for e in trace["traceEvents"])


def twelve_steps() -> str | None:
    """Record two of twelve steps, and return the file."""
    with profkit.trace("train", wait=3, warmup=2, active=2) as t:
        for _ in range(12):
            work()
            t.step()
    return t.path


def test_active_steps_have_no_stacks_and_source_lines_come_from_a_warm_up_step(
    opened: Opened,
) -> None:
    trace = opened(twelve_steps())
    assert annotations(trace) == ["ProfilerStep#5", "ProfilerStep#6"]
    assert n_ops(trace) == 2
    assert "with_stack" not in trace
    about = trace["profkit"]
    assert about["steps"] == "user"
    assert about["open_step"] == ""
    lines = about["lines"]
    assert lines["same_window"] is False
    assert [frame[2:] for frame in lines["frames"]] == [["work", 1]]
    assert "unrecorded" in about["cost"]["overhead_basis"]


def test_the_trace_is_written_right_after_its_last_step(tmp_path: Path) -> None:
    with profkit.trace("train", warmup=1, active=1) as t:
        for i in range(4):
            work()
            t.step()
            assert len(list(tmp_path.rglob("*.gz"))) == int(i >= 1)


def test_without_a_warm_up_source_lines_come_from_the_step_after_the_active_ones(
    opened: Opened,
) -> None:
    with profkit.trace("train", active=2) as t:
        for _ in range(4):
            work()
            t.step()
    trace = opened(t.path)
    assert annotations(trace) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert trace["profkit"]["lines"]["frames"][0][2:] == ["work", 1]


def test_each_cycle_is_a_file(tmp_path: Path, opened: Opened) -> None:
    with profkit.trace("train", wait=1, warmup=1, active=1, repeat=2) as t:
        for _ in range(9):
            work()
            t.step()
    paths = sorted(tmp_path.rglob("*.gz"))
    assert [annotations(opened(str(path))) for path in paths] == [
        ["ProfilerStep#2"],
        ["ProfilerStep#5"],
    ]
    assert t.path == str(paths[1])


def test_a_loop_that_ends_during_the_warm_up_has_a_trace(opened: Opened) -> None:
    with profkit.trace("train", wait=1, warmup=2, active=3) as t:
        for _ in range(2):
            work()
            t.step()
    trace = opened(t.path)
    assert annotations(trace) == ["ProfilerStep#1"]
    assert trace["profkit"]["lines"]["same_window"] is True


def test_a_loop_that_ends_before_the_warm_up_has_no_trace(tmp_path: Path) -> None:
    with profkit.trace("train", wait=5, warmup=2, active=3) as t:
        work()
        t.step()
    assert t.path is None
    assert list(tmp_path.rglob("*")) == []


def test_a_step_that_did_not_end_is_named(opened: Opened) -> None:
    block = profkit.trace("train", warmup=1, active=3)

    def loop() -> None:
        with block as t:
            for i in range(4):
                work()
                if i == 2:
                    raise ArithmeticError
                t.step()

    with pytest.raises(ArithmeticError):
        loop()
    about = opened(block.path)["profkit"]
    assert about["stopped_by"] == "ArithmeticError"
    assert about["open_step"] == "ProfilerStep#2"


def test_steps_without_a_schedule_are_all_recorded(opened: Opened) -> None:
    with profkit.trace("train") as t:
        for _ in range(3):
            work()
            t.step()
    trace = opened(t.path)
    assert annotations(trace, "train") == ["train"] * 4
    assert trace["profkit"]["open_step"] == "train"
    assert trace["profkit"]["lines"]["same_window"] is True


def test_steps_of_a_plain_iterable_measure_the_wait_for_data(opened: Opened) -> None:
    def batches() -> Iterator[int]:
        for i in range(9):
            torch.ones(2).cos()
            yield i

    loop = profkit.steps(batches(), "train", wait=1, warmup=2, active=3)
    seen = []
    for batch in loop:
        work()
        seen.append(batch)
    assert seen == list(range(9))
    trace = opened(loop.path)
    assert annotations(trace) == [f"ProfilerStep#{i}" for i in (3, 4, 5)]
    assert annotations(trace, "profkit.data_wait") == ["profkit.data_wait"] * 3
    assert n_ops(trace, "aten::cos") == n_ops(trace) == 3
    assert trace["profkit"]["steps"] == "loader"


def test_steps_of_a_data_loader_use_torchs_own_annotation_of_the_wait(opened: Opened) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)))
    loop = profkit.steps(loader, "train", wait=0, warmup=1, active=2)
    assert len(loop) == 8
    for _ in loop:
        work()
    trace = opened(loop.path)
    assert len(annotations(trace, "enumerate(DataLoader)")) == 2
    assert annotations(trace, "profkit.data_wait") == []


def test_a_loop_that_is_left_early_has_a_trace(opened: Opened) -> None:
    loop = profkit.steps(range(100), "train", wait=0, warmup=1, active=10)
    for batch in loop:
        work()
        if batch == 4:
            break
    trace = opened(loop.path)
    assert annotations(trace) == [f"ProfilerStep#{i}" for i in (1, 2, 3, 4)]
    assert trace["profkit"]["open_step"] == "ProfilerStep#4"


def test_a_loop_over_an_iterator_has_no_length() -> None:
    with pytest.raises(TypeError, match="no length"):
        len(profkit.steps(iter([]), "train"))


def test_an_invalid_schedule_is_rejected_before_the_loop() -> None:
    with pytest.raises(UsageError, match="or more"):
        profkit.steps([], "train", wait=-1)
