"""exposed-communication finds collectives that the step waits for, and only those."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from profkit.testing.trace_format import Format
from tests.detectors.ranks import COMM_STREAM, NCCL, US, backward, exchange, update

RULE = "exposed-communication"
AUTOGRAD = 2000
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def build_training(
    *,
    n_steps: int = 4,
    exchange_ns: int = 150 * US,
    backward_ns: int = 206 * US,
    overlap_ns: int = 0,
    late_ns: int = 0,
    builder: TraceBuilder | None = None,
    name: str = NCCL,
) -> TraceBuilder:
    """Build a step is 14 µs until the first kernel, 100 of forward, 206 of backward, and 40 for the
    optimizer: 360 µs, and what of the exchange is alone.

    ``late_ns`` is how long the host is busy before it launches the optimizer.
    """
    b = builder or TraceBuilder()
    for _ in range(n_steps):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=14 * US, device_ns=100 * US)
            # The collective starts when the first part of the backward pass has ended.
            backward(b, backward_ns - overlap_ns)
            begins = b.free_at_ns()
            if overlap_ns:
                backward(b, overlap_ns)
            with b.frame("train.py", 30, "average"):
                exchange(b, exchange_ns, at_ns=begins, name=name)
            b.advance(late_ns)
            ready = max(begins + exchange_ns, b.free_at_ns(), b.now_ns + 4 * US)
            update(b, at_ns=ready)
            b.synchronize()

    return b


def test_an_collective_after_the_backward_pass_costs_its_length(found: Found) -> None:
    (finding,) = found(build_training(), RULE)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (4 * 150 * US, 150 * US)
    assert finding.cost.basis == "upper-bound"
    assert (finding.severity, finding.confidence) == ("warning", "medium")
    assert finding.n == 4
    assert sum(end - start for start, end in finding.spans) == finding.cost.ns
    assert finding.evidence["exposed_ns"] == finding.evidence["waited_ns"] == 4 * 150 * US
    assert finding.evidence["longest_wait_ns"] == 150 * US
    assert finding.evidence["kinds"] == ["all-reduce"]
    assert finding.evidence["kinds_ns"] == [4 * 150 * US]


def test_it_names_the_line_and_what_sends_gradients_earlier(found: Found) -> None:
    (finding,) = found(build_training(), RULE)
    (location,) = finding.locations
    assert (location.file, location.line, location.function) == ("train.py", 30, "average")
    assert location.op == "c10d::allreduce_"
    assert finding.message == (
        "The GPU computes nothing for 150 µs per step (29%) while collectives run, once per step, "
        "mostly all-reduce in average (train.py:30); the longest wait is 150 µs. Waiting for "
        "slower ranks is included: the trace of one rank cannot tell it from the transfer."
    )
    assert "`DistributedDataParallel`" in finding.fix
    assert "`async_op=True`" in finding.fix


def test_an_collective_beside_the_backward_pass_is_the_fix(found: Found) -> None:
    assert found(build_training(overlap_ns=150 * US), RULE) == ()


def test_only_the_part_that_is_alone_is_charged(found: Found) -> None:
    (finding,) = found(build_training(overlap_ns=50 * US), RULE)
    assert finding.cost.per_step_ns == 100 * US


@pytest.mark.parametrize(("exchange_ns", "n"), [(40 * US, 1), (40 * US - 1, 0)])
def test_a_tenth_of_the_step_is_the_threshold(found: Found, exchange_ns: int, n: int) -> None:
    b = build_training(exchange_ns=exchange_ns)
    length_ns = 360 * US + exchange_ns
    assert [event.dur_ns for event in b.events if event.name.startswith("ProfilerStep")] == [
        length_ns
    ] * 4
    assert len(found(b, RULE)) == n


def test_of_all_exposed_time_it_says_how_much_is_waited_for(found: Found) -> None:
    # The optimizer is launched 94 µs after the start of an exchange of 150 µs.
    (finding,) = found(build_training(late_ns=386 * US), RULE)
    assert finding.evidence["exposed_ns"] == 4 * 150 * US
    assert finding.evidence["waited_ns"] == 4 * 56 * US
    assert (
        "nothing for 150 µs per step (29%) while collectives run, once per step, mostly all-reduce "
        "in average (train.py:30). Work that is launched waits for them 56.0 µs per step (11%) of "
        "it; the longest wait is 56.0 µs." in finding.message
    )


def test_an_collective_while_the_host_has_launched_nothing_else_is_not_waited_for(
    found: Found,
) -> None:
    # The optimizer is launched 300 µs after the exchange: a shorter one would change nothing.
    assert found(build_training(late_ns=700 * US), RULE) == ()


def test_a_host_that_waits_for_the_collective_is_not_late(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            backward(b, 200 * US)
            begins = b.free_at_ns()
            exchange(b, 100 * US, at_ns=begins)
            b.synchronize("StreamSynchronize")
            update(b, at_ns=b.now_ns + 4 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 100 * US


def test_one_rank_alone_waits_for_nobody(found: Found) -> None:
    alone = TraceBuilder(head={"distributedInfo": {"rank": 0, "world_size": 1}})
    assert found(build_training(builder=alone), RULE) == ()
    two = TraceBuilder(head={"distributedInfo": {"rank": 0, "world_size": 2}})
    assert len(found(build_training(builder=two), RULE)) == 1


def test_a_rank_that_is_late_once_is_not_reported(found: Found) -> None:
    b = build_training(n_steps=1, exchange_ns=5_000 * US)
    assert len(found(build_training(builder=b, overlap_ns=150 * US, n_steps=1), RULE)) == 0
    assert found(build_training(builder=b, overlap_ns=150 * US, n_steps=5), RULE) == ()


def test_the_only_step_is_reported_with_low_confidence(found: Found) -> None:
    (finding,) = found(build_training(n_steps=1), RULE)
    assert finding.confidence == "low"


def test_without_steps_the_recording_is_judged_as_a_whole(found: Found) -> None:
    b = TraceBuilder()
    backward(b, 200 * US)
    exchange(b, 100 * US, at_ns=b.free_at_ns())
    update(b, at_ns=b.free_at_ns())
    (finding,) = found(b, RULE)
    # The kernels run from 10 to 210, 310 and 350 µs. Without the exchange the last one starts a
    # switch of 1 µs after the first and ends at 251.
    assert (finding.cost.ns, finding.cost.per_step_ns) == (99 * US, None)
    assert finding.locations[0].op == "c10d::allreduce_"


def test_what_the_device_does_before_the_steps_is_not_charged_to_them(found: Found) -> None:
    b = TraceBuilder()
    exchange(b, 9_000 * US, at_ns=0)
    b.advance(10_000 * US)
    (finding,) = found(build_training(builder=b), RULE)
    assert finding.cost.per_step_ns == 150 * US


def test_collectives_at_the_same_time_are_charged_once(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            backward(b, 200 * US)
            begins = b.free_at_ns()
            exchange(b, 100 * US, at_ns=begins)
            exchange(b, 120 * US, at_ns=begins + 40 * US)
            update(b, at_ns=b.free_at_ns())
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 160 * US
    assert finding.evidence["kinds_ns"] == [3 * 160 * US]
    assert finding.evidence["longest_wait_ns"] == 100 * US


def test_of_several_devices_the_one_that_waits_most_is_reported(found: Found) -> None:
    b = TraceBuilder(device_names=("NVIDIA H200",) * 2)
    for _ in range(3):
        with b.step():
            for device, exchange_ns in ((0, 100 * US), (1, 180 * US)):
                backward(b, 200 * US, device=device)
                begins = b.free_at_ns(device)
                exchange(b, exchange_ns, at_ns=begins, device=device)
                update(b, at_ns=begins + exchange_ns, device=device)
            b.synchronize(device=1)
    (finding,) = found(b, RULE)
    assert finding.evidence["device"] == 1
    # The first device ends at 10 + 200 + 100 + 40, the second at 28 + 200 + 180 + 40. Which device
    # a call waits for is not recorded: without the exchange of the second it waits for the first.
    assert finding.cost.per_step_ns == (448 - 350) * US


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("rocm", "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"),
        ("xpu", "oneccl_allreduce_small<sycl::half>"),
        ("cuda", "void vllm::cross_device_reduce_1stage<__half, 4>(vllm::RankData*)"),
    ],
)
def test_other_vendors_and_libraries_have_collectives_too(
    vendor: str, name: str, tmp_path: Path
) -> None:
    path = build_training(name=name).write(tmp_path / "t.json", Format(vendor=vendor))  # type: ignore[arg-type]
    (finding,) = analyze(path, select=[RULE], strict=True).findings
    assert finding.cost.per_step_ns == 150 * US


def build_ddp(
    *, n_buckets: int = 1, n_passes: int = 1, n_sends: int = 4, exchange_ns: int = 100 * US
) -> TraceBuilder:
    """Gradients are sent by hooks on autograd's thread; the last bucket has nothing beside it."""
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            for remaining in range(n_passes, 0, -1):
                with (
                    b.frame("train.py", 20, "forward"),
                    b.annotation("DistributedDataParallel.forward"),
                ):
                    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=100 * US)
                with b.frame("train.py", 25, "backward"), b.op("aten::ones_like"):
                    pass
                with b.thread(AUTOGRAD):
                    backward(b, 200 * US)
                    for _ in range(n_buckets if remaining <= n_sends else 0):
                        begins = b.free_at_ns()
                        with b.op(
                            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                        ):
                            exchange(b, exchange_ns, at_ns=begins)
            update(b, at_ns=b.free_at_ns())
            b.synchronize()

    return b


def test_of_a_model_in_ddp_it_names_the_call_of_backward(found: Found) -> None:
    (finding,) = found(build_ddp(n_buckets=4), RULE)
    (location,) = finding.locations
    assert (location.line, location.op) == (25, "c10d::allreduce_")
    assert finding.cost.per_step_ns == 400 * US
    assert "bf16_compress_hook" in finding.fix
    assert "Wrap the model" not in finding.fix
    assert "bucket_cap_mb" not in finding.fix


@pytest.mark.parametrize(
    "evidence",
    ["torch::distributed::reducer::mul_out", "torch.distributed.ddp.reducer::copy_bucket_to_grad"],
)
def test_a_model_in_ddp_is_known_by_its_reducer(found: Found, evidence: str) -> None:
    b = build_ddp()
    for event in b.events:
        if event.name == "DistributedDataParallel.forward":
            event.name = "forward"
    assert "`DistributedDataParallel` already overlaps" not in found(b, RULE)[0].fix
    with b.step():
        b.compute(evidence, 1_000)
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("`DistributedDataParallel` already overlaps")


def test_gpus_without_bfloat16_are_told_to_compress_to_float16(found: Found) -> None:
    b = build_ddp()
    b.head = {"deviceProperties": [{"id": 0, "name": "V100", "computeMajor": 7, "computeMinor": 0}]}
    (finding,) = found(b, RULE)
    assert "fp16_compress_hook" in finding.fix
    assert "bf16" not in finding.fix


def test_gradients_that_go_in_one_piece_could_go_in_several(found: Found) -> None:
    (finding,) = found(build_ddp(), RULE)
    assert "All gradients are in one bucket" in finding.fix


def test_gradients_that_are_sent_once_for_several_passes_are_left_at_that(found: Found) -> None:
    (finding,) = found(build_ddp(n_passes=4, n_sends=1, n_buckets=3, exchange_ns=300 * US), RULE)
    assert "bucket" not in finding.fix


def test_sharded_parameters_are_gathered_earlier(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            with b.annotation("FSDP::pre_forward (layers.0)"):
                exchange(b, 100 * US, at_ns=b.now_ns + 10 * US, name="ncclDevKernel_AllGather")
            ready = b.free_at_ns()
            update(b, at_ns=ready, kernel_ns=300 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert "set_modules_to_forward_prefetch" in finding.fix


def test_inference_that_splits_layers_over_devices_gets_a_note_that_fits(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=200 * US)
            begins = b.free_at_ns()
            exchange(b, 100 * US, at_ns=begins, name="cross_device_reduce_1stage")
            ident = b.call("LaunchKernel", 4 * US)
            b.kernel("gemm", 200 * US, correlation=ident, at_ns=begins + 100 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert "by design" in finding.fix
    assert "DistributedDataParallel" not in finding.fix


def test_an_collective_in_the_forward_pass_is_started_earlier(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            with b.annotation("## embeddings ##"):
                exchange(b, 100 * US, at_ns=b.now_ns + 10 * US)
            update(b, at_ns=b.free_at_ns(), kernel_ns=300 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("Start it with `async_op=True`")
    assert "mostly all-reduce in `## embeddings ##`;" in finding.message


@pytest.mark.parametrize(
    ("op", "written", "fix"),
    [
        ("c10d::barrier", "allreduce", "Remove the barrier"),
        ("c10d::recv_", "recv", "With pipeline parallelism"),
        ("c10d::alltoall_base_", "all_to_allv", "Start it with `async_op=True`"),
        ("record_param_comms", "all_to_allv", "Start it with `async_op=True`"),
    ],
)
def test_what_to_do_depends_on_the_kind_of_collective(
    found: Found, op: str, written: str, fix: str
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            backward(b, 200 * US)
            begins = b.free_at_ns()
            with b.op(op):
                ident = b.call("LaunchKernel", 4 * US)
                place = {"stream": COMM_STREAM, "at_ns": begins, "Collective name": written}
                b.kernel("ncclDevKernel_SendRecv", 100 * US, correlation=ident, **place)
            update(b, at_ns=begins + 100 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(fix)


def test_an_collective_whose_start_was_not_recorded_is_charged_to_no_line(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            backward(b, 200 * US)
            begins = b.free_at_ns()
            b.kernel(NCCL, 100 * US, at_ns=begins, stream=COMM_STREAM)
            update(b, at_ns=begins + 100 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.locations == ()
    assert "once per step; the longest wait" in finding.message


def test_what_data_parallel_sends_within_one_process_is_not_this_rule_s(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            with b.annotation("DataParallel.forward"), b.op("Broadcast"):
                ident = b.call("LaunchKernel", 4 * US)
                b.kernel("ncclDevKernel_Broadcast_RING_LL", 200 * US, correlation=ident)
            backward(b, 200 * US)
            b.synchronize()
    assert found(b, RULE) == ()


def test_a_program_of_one_process_has_nothing_to_find(
    found: Found, host_alone: TraceBuilder
) -> None:
    assert found(host_alone, RULE) == ()


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "COM001"


def test_collectives_of_devices_that_were_not_recorded_are_unchecked(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step(), b.op("c10d::allreduce_"), b.annotation("nccl:all_reduce"):
        b.advance(10 * US)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.reason.startswith("Collectives of a GPU were started, but no work")
    assert "ProfilerActivity.CUDA" in unchecked.remedy
