"""Launches, steps, idle causes and communication, on traces whose answers are known by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from profkit.engine.context import Context
from profkit.index.runtime_calls import ALLOCATOR, BLOCKING_COPY, EXPLICIT_SYNC, GRAPH_LAUNCH
from profkit.model.capture_info import CaptureInfo
from profkit.model.events import NO_ROW, Category
from profkit.testing import TraceBuilder

Read = Callable[[TraceBuilder], Context]


def causes(ctx: Context) -> dict[str, int]:
    (only,) = ctx.idle_causes
    return {cause: time.total_ns for cause, time in only.items() if len(time)}


def test_a_kernel_belongs_to_the_innermost_operator_that_launched_it(read: Read) -> None:
    builder = TraceBuilder()
    with builder.op("aten::linear"):
        builder.launch("aten::addmm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    ctx = read(builder)
    (op,) = ctx.launches.op
    (call,) = ctx.launches.launch
    assert ctx.events.name_of(op) == "aten::addmm"
    assert ctx.events.name_of(call) == "cudaLaunchKernel"


def test_all_kernels_of_a_graph_belong_to_its_one_launch(read: Read) -> None:
    builder = TraceBuilder()
    with builder.op("replay"):
        builder.graph_launch([("a", 1_000), ("b", 2_000), ("c", 3_000)])
    ctx = read(builder)
    assert len(ctx.launches.work) == 3
    assert len(set(ctx.launches.launch.tolist())) == 1
    assert len(GRAPH_LAUNCH.rows(ctx.events)) == 1
    assert not len(ctx.launches.orphans)


def test_work_launched_before_the_window_is_an_orphan(read: Read) -> None:
    builder = TraceBuilder()
    builder.kernel("early", 5_000)
    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    ctx = read(builder)
    assert [ctx.events.name_of(row) for row in ctx.launches.orphans] == ["early"]
    assert ctx.launches.op[0] == NO_ROW


def test_steps_are_marks_on_the_host_and_not_their_copies_on_a_device(read: Read) -> None:
    builder = TraceBuilder(first_step=4)
    for _ in range(2):
        with builder.step():
            builder.compute("aten::mm", 1_000)
    copy = builder.work("gpu_user_annotation", "ProfilerStep#4", 500, correlation=1)
    assert copy.cat == "gpu_user_annotation"
    ctx = read(builder)
    assert ctx.steps.names == ("ProfilerStep#4", "ProfilerStep#5")
    assert ctx.steps.of(np.array([0, 999, 1_000, 2_000])).tolist() == [0, 0, 1, -1]


def test_idle_time_is_attributed_to_the_host_activity(read: Read) -> None:
    builder = TraceBuilder()
    builder.launch("aten::a", kernel="k", host_ns=4_000, device_ns=1_000)  # runs 4000 to 5000
    builder.load(10_000)  # from 4000 to 14000: 9000 of it idle
    builder.call("Malloc", 2_000)  # to 16000
    builder.overhead("Buffer Flush", 3_000)  # to 19000
    builder.advance(500)  # Python, to 19500
    builder.latency_ns = 700
    builder.launch("aten::b", kernel="k", host_ns=4_000, device_ns=1_000)  # call from 19500

    ctx = read(builder)
    assert causes(ctx) == {
        "data": 9_000,
        "allocator": 2_000,
        "overhead": 3_000,
        "host": 500,
        "launch": 4_700,
    }

    (device,) = ctx.devices
    assert sum(causes(ctx).values()) == device.idle.total_ns == device.span_ns - 2_000


def test_idle_time_while_the_host_waits_for_the_device_is_sync(read: Read) -> None:
    builder = TraceBuilder()
    builder.launch("aten::a", kernel="k", host_ns=4_000, device_ns=20_000)  # runs 4000 to 24000
    builder.synchronize()
    builder.call("StreamSynchronize", 6_000)  # nothing is left to wait for: from 24000 to 30000
    builder.launch("aten::b", kernel="k", host_ns=4_000, device_ns=1_000)
    assert causes(read(builder)) == {"sync": 6_000, "launch": 4_000}


def test_a_gap_between_queued_kernels_has_the_device_as_its_cause(read: Read) -> None:
    builder = TraceBuilder()
    first = builder.call("LaunchKernel", 1_000)
    second = builder.call("LaunchKernel", 1_000)
    builder.kernel("a", 5_000, correlation=first, at_ns=3_000)
    builder.kernel("b", 5_000, correlation=second, at_ns=9_500)
    assert causes(read(builder)) == {"device": 1_500}


def test_a_launch_that_still_runs_when_the_gap_begins_is_late(read: Read) -> None:
    # The second launch loads its kernel's code: it begins before the first kernel ends at 14000.
    builder = TraceBuilder()
    builder.launch("aten::a", kernel="a", host_ns=4_000, device_ns=10_000)  # runs 4000 to 14000
    slow = builder.call("LaunchKernel", 500_000)  # from 4000 to 504000
    builder.kernel("b", 1_000, correlation=slow, at_ns=506_000)
    # The last 5000 of the call, and the 2000 to the kernel's start, are what any launch takes.
    assert causes(read(builder)) == {"host": 485_000, "launch": 7_000}


def test_a_launch_during_whose_call_the_work_begins_is_late_until_shortly_before(
    read: Read,
) -> None:
    builder = TraceBuilder()
    builder.launch("aten::a", kernel="a", host_ns=4_000, device_ns=10_000)  # runs 4000 to 14000
    slow = builder.call("LaunchKernel", 500_000)  # from 4000 to 504000
    builder.kernel("b", 1_000, correlation=slow, at_ns=499_000)
    assert causes(read(builder)) == {"host": 480_000, "launch": 5_000}


def test_a_copy_whose_call_waits_for_the_kernel_before_it_was_queued(read: Read) -> None:
    builder = TraceBuilder()
    builder.launch("aten::a", kernel="a", host_ns=4_000, device_ns=100_000)  # runs to 104000
    copy = builder.call("MemcpyAsync", 120_000)  # from 4000 to 124000
    builder.work(
        "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 5_000, correlation=copy, at_ns=110_000
    )
    assert causes(read(builder)) == {"device": 6_000}


def test_a_gap_before_an_orphan_has_an_unknown_cause(read: Read) -> None:
    builder = TraceBuilder()
    builder.kernel("a", 5_000, at_ns=0)
    builder.kernel("b", 5_000, at_ns=9_000)
    assert causes(read(builder)) == {"unknown": 4_000}


def test_concurrent_work_on_two_streams_counts_once(read: Read) -> None:
    builder = TraceBuilder()
    builder.kernel("gemm", 10_000, at_ns=0, stream=7)
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32", 10_000, at_ns=6_000, stream=20)
    builder.work("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 3_000, at_ns=20_000)
    (device,) = read(builder).devices
    assert (device.span_ns, device.busy.total_ns, device.idle.total_ns) == (23_000, 19_000, 4_000)
    assert (device.compute.total_ns, device.communication.total_ns) == (10_000, 10_000)
    assert (device.overlap_ns, device.memcpy.total_ns) == (4_000, 3_000)


def test_each_device_has_its_own_figures(read: Read) -> None:
    builder = TraceBuilder(device_names=("a", "b"))
    builder.kernel("k", 1_000, at_ns=0, device=0)
    builder.kernel("k", 3_000, at_ns=500, device=1)
    busy_ns = {d.device: d.busy.total_ns for d in read(builder).devices}
    assert busy_ns == {0: 1_000, 1: 3_000}


@pytest.mark.parametrize(
    ("name", "talks"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", True),
        ("void vllm::cross_device_reduce_1stage<__half, 4>(RankData*)", True),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>()", True),
        ("deep_ep::internode::dispatch", True),
        ("void flashinfer::allreduce_fusion_kernel_oneshot_lamport<1>()", True),
        ("void trtllm_mnnvl_allreduce::twoshotAllreduceKernel<8, __nv_bfloat16>()", True),
        ("void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u>()", True),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int, int, int, int)", True),
        ("triton_poi_fused_all_reduce_lift_fresh_0", False),
        ("void at::native::reduce_kernel<512, 1>()", False),
        ("hipLaunchWhatever", False),
        ("sm90_xmma_gemm_bf16bf16", False),
    ],
)
def test_collective_kernels_are_recognized_by_name(name: str, talks: bool, read: Read) -> None:  # noqa: FBT001
    builder = TraceBuilder()
    builder.kernel(name, 1_000)
    assert read(builder).is_communication.any() == talks


def test_a_kernel_event_with_a_collective_is_communication(read: Read) -> None:
    builder = TraceBuilder()
    builder.kernel("my_kernel", 1_000, **{"Collective name": "allreduce"})
    assert read(builder).is_communication.any()


@pytest.mark.parametrize(
    ("kind", "yes", "no"),
    [
        (EXPLICIT_SYNC, ["cudaDeviceSynchronize", "hipStreamSynchronize", "cudaEventSynchronize",
                         "cuStreamSynchronize"], ["cudaStreamWaitEvent", "cudaEventRecord"]),
        (BLOCKING_COPY, ["cudaMemcpy", "hipMemcpyWithStream"], ["cudaMemcpyAsync"]),
        (ALLOCATOR, ["cudaMalloc", "cudaFree", "hipHostMalloc", "cudaHostAlloc", "cuMemCreate"],
         ["cudaMallocAsync", "cudaFreeAsync", "cudaMemcpy"]),
    ],
)  # fmt: skip
def test_calls_are_classified_by_name(kind: object, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes + no if kind.matches(name)] == yes  # type: ignore[attr-defined]


def test_data_wait_is_the_loaders_time_in_each_step(read: Read) -> None:
    builder = TraceBuilder()
    for wait_ns in (5_000, 7_000):
        with builder.step():
            builder.load(wait_ns)
            builder.launch("aten::mm", kernel="k", host_ns=5_000, device_ns=1_000)
    ctx = read(builder)
    assert ctx.events.dur_ns[ctx.data_waits].tolist() == [5_000, 7_000]
    assert len(ctx.events.rows_of(Category.ANNOTATION)) == 4


def test_an_incomplete_step_is_excluded(read: Read) -> None:
    builder = TraceBuilder(
        capture=CaptureInfo(version="1", name="train", open_step="ProfilerStep#2")
    )
    for _ in range(3):
        with builder.step():
            builder.compute("aten::mm", 1_000)
    assert read(builder).steps.names == ("ProfilerStep#0", "ProfilerStep#1")


@pytest.mark.parametrize(("last_ns", "n_incomplete"), [(0, 0), (500, 1)])
def test_what_follows_the_last_step_of_a_block_is_not_a_step(
    read: Read, last_ns: int, n_incomplete: int
) -> None:
    builder = TraceBuilder(capture=CaptureInfo(version="1", name="train", open_step="train"))
    for _ in range(3):
        with builder.annotation("train"):
            builder.compute("aten::mm", 1_000)
    with builder.annotation("train"):
        builder.advance(20)
        if last_ns:
            builder.compute("aten::mm", last_ns)
    steps = read(builder).steps
    assert steps.names == ("train",) * 3
    assert (steps.ends_ns - steps.starts_ns).tolist() == [1_000] * 3
    assert steps.n_incomplete == n_incomplete


def test_a_block_without_steps_is_one_even_if_it_was_ended(read: Read) -> None:
    builder = TraceBuilder(capture=CaptureInfo(version="1", name="train", open_step="train"))
    with builder.annotation("train"):
        builder.compute("aten::mm", 1_000)
    assert read(builder).steps.names == ("train",)
