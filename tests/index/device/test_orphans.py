"""A stream's order tells work from before the recording from work whose launch was lost."""

from pathlib import Path

from profkit.engine.context import Context
from profkit.index.device.orphans import (
    find_launches_without_work,
    orphans_from_before_recording,
    orphans_with_lost_launch,
)
from profkit.testing import TraceBuilder
from tests.traces import read_context


def names(ctx: Context, rows: object) -> list[str]:
    return [ctx.events.name_of(row) for row in rows.tolist()]  # type: ignore[attr-defined]


def test_each_stream_is_evaluated_separately(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.kernel("before", 1_000)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    b.kernel("before on another stream", 1_000, stream=13)
    b.kernel("lost", 1_000)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000, stream=13)
    ctx = read_context(b, tmp_path)
    assert names(ctx, orphans_from_before_recording(ctx.events, ctx.launches)) == [
        "before",
        "before on another stream",
    ]
    assert names(ctx, orphans_with_lost_launch(ctx.events, ctx.launches)) == ["lost"]


def test_equal_stream_numbers_of_two_devices_differ(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    b.kernel("before on the second", 1_000, device=1)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000, device=1)
    ctx = read_context(b, tmp_path)
    assert names(ctx, orphans_from_before_recording(ctx.events, ctx.launches)) == [
        "before on the second"
    ]


def test_a_copy_call_without_work_is_not_a_lost_kernel(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.call("MemcpyAsync", 1_000)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    ctx = read_context(b, tmp_path)
    calls, without = find_launches_without_work(ctx.events, ctx.launches)
    assert names(ctx, calls) == ["cudaLaunchKernel"]
    assert not len(without)


def test_driver_and_hip_launches_count(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.call("cuLaunchKernelEx", 1_000, cat="cuda_driver")
    b.call("hipExtModuleLaunchKernel", 1_000)
    b.call("cudaLaunchKernelExC", 1_000)
    ctx = read_context(b, tmp_path)
    assert len(find_launches_without_work(ctx.events, ctx.launches)[1]) == 3


def test_without_launches_no_orphan_is_from_before_the_recording(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(3):
        b.kernel("gemm", 1_000)
    ctx = read_context(b, tmp_path)
    assert not len(orphans_from_before_recording(ctx.events, ctx.launches))
    assert len(orphans_with_lost_launch(ctx.events, ctx.launches)) == 3


def test_a_stream_of_orphans_is_from_before_until_another_stream_launches(
    tmp_path: Path,
) -> None:
    b = TraceBuilder()
    b.kernel("before", 1_000, stream=13)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    b.advance(50_000)
    b.kernel("not recorded", 1_000, stream=13)
    ctx = read_context(b, tmp_path)
    assert names(ctx, orphans_from_before_recording(ctx.events, ctx.launches)) == ["before"]
    assert names(ctx, orphans_with_lost_launch(ctx.events, ctx.launches)) == ["not recorded"]


def test_streams_without_numbers_are_distinguished_by_lane(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
    b.kernel("before on another stream", 1_000, stream=13)
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000, stream=13)
    for event in b.events:
        if event.args:
            event.args.pop("stream", None)
    ctx = read_context(b, tmp_path)
    assert names(ctx, orphans_from_before_recording(ctx.events, ctx.launches)) == [
        "before on another stream"
    ]
