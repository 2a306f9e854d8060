"""Rules measure the steps, or the whole recording without steps."""

from pathlib import Path

import pytest

from profkit.engine import windows
from profkit.engine.wording import tensor_method, time_per_step, times_per_step
from profkit.testing import TraceBuilder
from tests.traces import read_context


def waiting(*, steps: int) -> TraceBuilder:
    b = TraceBuilder()
    for _ in range(steps or 1):
        with b.step() if steps else b.annotation("region"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            b.synchronize()
            b.advance(30_000)
    return b


def test_windows_are_the_steps(tmp_path: Path) -> None:
    ctx = read_context(waiting(steps=3), tmp_path)
    starts, ends = windows.windows(ctx)
    assert starts.tolist() == [0, 140_000, 280_000]
    assert windows.windows_ns(ctx) == int((ends - starts).sum()) == 3 * 140_000


def test_without_steps_the_window_is_from_first_to_last_device_work(tmp_path: Path) -> None:
    starts, ends = windows.windows(read_context(waiting(steps=0), tmp_path))
    assert (starts.tolist(), ends.tolist()) == ([10_000], [110_000])


def test_without_steps_and_devices_the_window_is_the_recording(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("aten::mm", 30_000)
    b.compute("aten::mm", 40_000)
    starts, ends = windows.windows(read_context(b, tmp_path))
    assert (starts.tolist(), ends.tolist()) == ([0], [70_000])


def test_an_empty_recording_has_no_windows(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    b.alloc(1)
    ctx = read_context(b, tmp_path)
    assert windows.windows_ns(ctx) == 0
    assert len(windows.idle_in_windows(ctx)) == 0


@pytest.mark.parametrize(
    ("ns", "reaches"), [(42_000, True), (41_999, False), (0, False), (None, False)]
)
def test_a_time_reaches_a_share_of_the_windows(
    ns: int | None, *, reaches: bool, tmp_path: Path
) -> None:
    ctx = read_context(waiting(steps=3), tmp_path)
    assert windows.reaches_share(ctx, ns, 0.1) is reaches


def test_the_start_and_the_end_of_a_step_without_work_are_idle(tmp_path: Path) -> None:
    ctx = read_context(waiting(steps=2), tmp_path)
    assert windows.idle_in_windows(ctx).pairs() == (
        (0, 10_000),
        (110_000, 150_000),
        (250_000, 280_000),
    )


def test_a_device_is_used_even_if_its_work_was_not_recorded(tmp_path: Path) -> None:
    cpu, lost = TraceBuilder(), TraceBuilder()
    cpu.compute("aten::mm", 1_000)
    lost.call("LaunchKernel", 1_000)
    assert not windows.uses_device(read_context(cpu, tmp_path))
    assert windows.uses_device(read_context(lost, tmp_path))


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (4, "once per step"),
        (8, "twice per step"),
        (12, "3 times per step"),
        (10, "about 2.5 times per step"),
        (3, "3 times in 4 steps"),
    ],
)
def test_counts_are_given_per_step(tmp_path: Path, n: int, text: str) -> None:
    assert times_per_step(read_context(waiting(steps=4), tmp_path), n) == text


def test_without_steps_counts_are_totals(tmp_path: Path) -> None:
    ctx = read_context(waiting(steps=0), tmp_path)
    assert times_per_step(ctx, 12) == "12 times"
    assert time_per_step(ctx, 1_500_000) == "1.50 ms"


def test_the_method_of_a_tensor_is_known_from_its_builtin(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.builtin("method tolist of Tensor object at 0x7f"):
        b.compute("aten::to", 1_000)
    b.compute("aten::to", 1_000)
    ctx = read_context(b, tmp_path)
    ops = [row for row in range(len(ctx.events)) if ctx.events.name_of(row) == "aten::to"]
    assert [tensor_method(ctx, row) for row in ops] == ["tolist", None]
