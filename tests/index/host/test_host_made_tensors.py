"""A copied tensor's maker is the operator that made it just before, on the same line."""

from pathlib import Path

import numpy as np
import pytest

from profkit.index.device.syncs import SyncKind
from profkit.index.host.host_made_tensors import find_creating_ops
from profkit.model.events import NO_ROW
from profkit.testing import TraceBuilder
from tests.traces import read_context


def makers_in(b: TraceBuilder, tmp_path: Path) -> list[str]:
    ctx = read_context(b, tmp_path)
    owners = np.unique(ctx.syncs.of_kind(SyncKind.TO_DEVICE).owner).astype(np.int32)
    op_rows = find_creating_ops(ctx.events, ctx.tree, ctx.source.frame, owners)
    return ["" if row == NO_ROW else ctx.events.name_of(row) for row in op_rows.tolist()]


@pytest.mark.parametrize("maker", ["aten::zeros", "aten::arange", "aten::empty"])
def test_the_operator_before_a_copy_created_the_tensor(tmp_path: Path, maker: str) -> None:
    b = TraceBuilder()
    b.compute(maker, 1_000)
    b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == [maker]


def test_an_array_of_numpy_is_data(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("aten::lift_fresh", 1_000)
    b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == [""]


def test_a_tensor_created_from_a_list_is_found_by_its_line(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 10, "step"):
        for name in ("aten::empty", "aten::to", "aten::lift_fresh", "aten::detach_"):
            b.compute(name, 1_000)
        b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == ["aten::empty"]


def test_without_lines_an_operator_in_between_hides_the_creating_one(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("aten::zeros", 1_000)
    b.compute("aten::mul", 1_000)
    b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == [""]


def test_with_lines_the_creating_operator_is_on_the_copys_line(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 10, "step"):
        b.compute("aten::zeros", 1_000)
        b.compute("aten::mul", 1_000)
        b.to_device(32, 1_000)
    with b.frame("train.py", 20, "other"):
        b.compute("aten::zeros", 1_000)
    with b.frame("train.py", 10, "step"):
        b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == ["aten::zeros", ""]


def test_a_region_between_creation_and_copy_separates_them(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("aten::zeros", 1_000)
    with b.annotation("region"):
        b.advance(1_000)
    b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == [""]


def test_operators_of_other_threads_do_not_count(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.thread(2000):
        b.compute("aten::zeros", 1_000)
    b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == [""]


def test_the_first_operator_of_a_recording_has_nothing_before_it(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.to_device(32, 1_000)
    assert makers_in(b, tmp_path) == [""]
