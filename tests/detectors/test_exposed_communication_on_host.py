"""exposed-communication finds collectives on host threads that the step waits for."""

from collections.abc import Callable
from typing import Any

from profkit.model.finding import Finding
from profkit.testing import TraceBuilder
from tests.detectors.ranks import US, backward, update

RULE = "exposed-communication"
GLOO = 3000
Found = Callable[..., tuple[Finding, ...]]


def gloo(
    b: TraceBuilder,
    dur_ns: int,
    *,
    copies: bool = False,
    beside: bool = False,
    op: bool = True,
    **inputs: Any,  # noqa: ANN401  (of several types)
) -> None:
    """Add an all-reduce that a thread of gloo runs, and ``beside`` it the caller's next work."""
    if op:
        with b.op("c10d::allreduce_", self_ns=10 * US, **inputs):
            pass
    start = b.now_ns
    with b.thread(GLOO), b.annotation("gloo:all_reduce"):
        b.advance(dur_ns)
        if copies:
            b.copy("HtoD (Pinned -> Device)", 1 << 20, 10 * US, blocking=False)
            b.call("StreamSynchronize", 10 * US)
    if beside:
        b.now_ns = start


def by_gloo(
    *, n: int = 2, dur_ns: int = 50 * US, beside: bool = False, op: bool = True
) -> TraceBuilder:
    """Build a step on a CPU: 200 µs of operators, and all-reduces one after the other."""
    b = TraceBuilder(device_names=())
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            with b.op("autograd::engine::evaluate_function: MmBackward0", self_ns=10 * US):
                b.compute("aten::mm", 180 * US)
            for _ in range(n):
                with b.frame("train.py", 40, "average"):
                    gloo(b, dur_ns, beside=beside, op=op)
                b.compute("aten::div_", 5 * US + (dur_ns if beside else 0))
    return b


def test_on_a_cpu_the_wait_for_gloo_is_charged_to_the_line_that_started_it(found: Found) -> None:
    (finding,) = found(by_gloo(), RULE)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (4 * 2 * 50 * US, 100 * US)
    assert sum(end - start for start, end in finding.spans) == finding.cost.ns
    (location,) = finding.locations
    assert (location.file, location.line, location.op) == ("train.py", 40, "c10d::allreduce_")
    assert finding.n == 8
    assert finding.message == (
        "Nothing is computed for 100 µs per step (31%) while collectives run on host threads, "
        "twice per step, mostly all-reduce in average (train.py:40); the longest wait is 50.0 µs. "
        "Waiting for slower ranks is included: the trace of one rank cannot tell it from the "
        "transfer."
    )
    assert finding.fix.startswith("Wrap the model in `DistributedDataParallel`")
    assert "nccl" not in finding.fix


def test_on_a_cpu_an_collective_beside_operators_is_the_fix(found: Found) -> None:
    assert found(by_gloo(beside=True), RULE) == ()


def test_a_wait_ends_when_work_goes_on_though_the_thread_of_gloo_ends_its_annotation_later(
    found: Found,
) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(4):
        with b.step():
            with b.op("c10d::allreduce_", self_ns=10 * US):
                pass
            start = b.now_ns
            with b.thread(GLOO), b.annotation("gloo:all_reduce"):
                b.advance(400 * US)
            b.now_ns = start + 360 * US
            b.compute("aten::add_", 10 * US)
            b.advance(5 * US)  # between operators
            b.compute("aten::mm", 300 * US)
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 360 * US


def test_a_pause_that_ends_before_the_collective_does_was_not_a_wait_for_it(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(4):
        with b.step():
            with b.op("c10d::allreduce_", self_ns=10 * US):
                pass
            start = b.now_ns
            with b.thread(GLOO), b.annotation("gloo:all_reduce"):
                b.advance(400 * US)
            b.now_ns = start + 200 * US  # Python alone
            b.compute("aten::mm", 300 * US)
    assert found(b, RULE) == ()


def test_fetching_a_batch_meanwhile_is_not_a_wait_for_the_collective(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(4):
        with b.step():
            gloo(b, 200 * US, beside=True)
            b.load(200 * US)
            b.compute("aten::mm", 300 * US)
    assert found(b, RULE) == ()


def test_an_operator_that_calls_an_collective_does_not_compute_while_it_waits(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(4):
        with b.step():
            with b.op("SyncBatchNorm"):
                b.compute("aten::mean", 10 * US)
                gloo(b, 100 * US)
                b.compute("aten::add", 10 * US)
            b.compute("aten::mm", 100 * US)
            with b.op("autograd::engine::evaluate_function: MmBackward0"):
                b.compute("aten::mm", 200 * US)
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 100 * US
    assert finding.fix.startswith("Start it with `async_op=True`")


def test_gloo_of_a_model_in_ddp_does_not_mention_hooks_of_nccl(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            with b.annotation("DistributedDataParallel.forward"):
                b.compute("aten::mm", 100 * US)
            with b.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
                gloo(b, 100 * US)
            b.compute("aten::add_", 50 * US)
    (finding,) = found(b, RULE)
    assert finding.fix == (
        "`DistributedDataParallel` already overlaps communication with backward. Compute more per "
        "collective, with a larger batch on each rank. All gradients are in one bucket: with a "
        "smaller `bucket_cap_mb` the first all-reduce starts earlier."
    )


def test_before_torch_wrote_operators_for_collectives_no_line_is_known(found: Found) -> None:
    (finding,) = found(by_gloo(op=False), RULE)
    assert finding.cost.per_step_ns == 100 * US
    assert finding.locations == ()


def test_gloo_for_tensors_of_a_gpu_is_to_be_nccl(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            backward(b, 200 * US)
            b.synchronize()
            gloo(b, 100 * US, copies=True)
            update(b, at_ns=b.now_ns + 4 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    # All of gloo's 100 µs, its 4 to copy the result back, and its wait of 10 for the copy.
    assert finding.cost.per_step_ns == 114 * US
    assert finding.evidence["device"] is None
    assert finding.fix.startswith("gloo copies these GPU tensors")
    assert '`init_process_group("nccl")`' in finding.fix


def test_gloo_beside_a_gpu_that_computes_costs_nothing(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=900 * US)
            gloo(b, 500 * US)
            b.synchronize()
    assert found(b, RULE) == ()


def test_gloo_while_the_host_is_busy_with_something_else_is_not_waited_for(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            backward(b, 200 * US)
            b.synchronize()
            gloo(b, 100 * US, beside=True)
            b.compute("aten::sort", 300 * US)
            update(b, at_ns=b.now_ns + 4 * US)
            b.synchronize()
    assert found(b, RULE) == ()
