"""cold-start finds the set-up of libraries in a recording, and what it costs."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "cold-start"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def kernel(b: TraceBuilder, op: str, *, call_ns: int = 4_000, device_ns: int = 100_000) -> None:
    with b.op(op):
        b.kernel("gemm", device_ns, correlation=b.call("LaunchKernel", call_ns))


def program(*, cold: bool, steps: bool = True) -> TraceBuilder:
    """Four passes, of which the first sets up libraries."""
    b = TraceBuilder(stacks=True)
    for number in range(4):
        with b.step() if steps else nullcontext(), b.frame("train.py", 10, "train"):
            if cold and number == 0:
                with b.op("aten::cudnn_convolution"):
                    b.call("StreamCreateWithFlags", 300_000_000)
                with b.op("aten::addmm"):
                    b.call("Free", 200_000_000)
                kernel(b, "aten::add", call_ns=500_000_000)
            for _ in range(20):
                kernel(b, "aten::mm")
            b.synchronize()
    return b


@pytest.mark.parametrize("steps", [True, False])
def test_it_costs_the_calls_and_names_what_they_set_up(analyzed: Analyzed, *, steps: bool) -> None:
    report = analyzed(program(cold=True, steps=steps), RULE)
    (finding,) = report.health
    assert report.findings == ()
    assert finding.cost.ns == 1_000_000_000
    assert finding.cost.basis == "replay"
    assert finding.severity == "note"
    assert finding.n == 3
    assert finding.message == (
        f"Cold start takes 1.00 s of {'the steps' if steps else 'the recording'} (99%), while the "
        "GPU is idle: loading the code of kernels 500 ms, setting up cuDNN 300 ms, setting up "
        "cuBLAS 200 ms. The longest call is `cudaLaunchKernel` in `aten::add` in train "
        "(train.py:10)."
    )
    assert ("warmup=1" in finding.fix) == steps


def test_libraries_of_amd_have_other_names(found: Found) -> None:
    b = TraceBuilder(runtime="hip")
    with b.op("aten::miopen_convolution"):
        b.call("StreamCreate", 300_000_000)
    with b.op("aten::mm"):
        b.call("ModuleLoad", 100_000_000)
    b.call("GetDeviceCount", 50_000_000)
    kernel(b, "aten::mm")
    (finding,) = found(b, RULE)
    assert (
        "setting up MIOpen 300 ms, setting up rocBLAS 100 ms, setting up the device 50.0 ms"
    ) in finding.message


def test_graphs_and_calls_about_kernels_are_named_as_such(found: Found) -> None:
    b = TraceBuilder()
    with b.op("flash_attn::_flash_attn_forward"):
        b.call("FuncSetAttribute", 200_000_000)
    b.call("GraphInstantiateWithFlags_v11040", 300_000_000)
    kernel(b, "aten::mm")
    (finding,) = found(b, RULE)
    assert (
        "instantiating CUDA graphs 300 ms, loading the code of kernels 200 ms"
    ) in finding.message


def test_a_recording_after_warm_up_has_none(found: Found) -> None:
    assert found(program(cold=False), RULE) == ()


def test_a_set_up_before_the_first_step_is_in_no_figure(found: Found) -> None:
    b = TraceBuilder()
    kernel(b, "aten::mm", call_ns=500_000_000)
    for _ in range(3):
        with b.step():
            kernel(b, "aten::mm", device_ns=1_000_000)
            b.synchronize()
    assert found(b, RULE) == ()


def test_a_launch_that_waits_for_a_full_queue_is_none(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            kernel(b, "aten::mm", device_ns=60_000_000)
            kernel(b, "aten::mm", call_ns=50_000_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    ("call", "ms"),
    [("HostAlloc", 300), ("Malloc", 60), ("DeviceSynchronize", 300), ("ProfilerStart", 300)],
    ids=["pinned memory", "device memory", "sync", "profiler"],
)
def test_other_long_calls_are_silent(found: Found, call: str, ms: int) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            kernel(b, "aten::mm")
            b.synchronize()
            b.call(call, ms * 1_000_000)
    assert found(b, RULE) == ()


def test_a_small_share_of_the_steps_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for number in range(10):
        with b.step():
            kernel(b, "aten::mm", call_ns=12_000_000 if number == 0 else 4_000)
            b.advance(40_000_000)
    assert found(b, RULE) == ()
    assert found(b, RULE, min_saved_share=0.02) != ()


def test_one_cause_has_one_finding(found: Found) -> None:
    b = program(cold=True)
    assert found(b, "no-warm-up") == ()
    assert found(b, "no-warm-up", max_cold_share=1.1) != ()


def test_without_device_work_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "PRF010"
