"""data-parallel finds models in nn.DataParallel, and the cost of the wrapper."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from profkit.testing.trace_format import Format

RULE = "data-parallel"
CALL = "DataParallel.forward"
AUTOGRAD, REPLICA = 2000, 5000
US = 1_000
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def build_on_one_device(
    *,
    n_steps: int = 3,
    device_ns: int = 50 * US,
    from_host: bool = False,
    scatter: bool = True,
    call: str = CALL,
    trains: bool = True,
) -> TraceBuilder:
    """Build steps whose wrapper takes 60 µs before it calls the model."""
    b = TraceBuilder()
    for _ in range(n_steps):
        with b.step(), b.frame("train.py", 10, "train_step"), b.annotation(call):
            b.advance(40 * US)
            if scatter:
                with b.op("Scatter", self_ns=5 * US):
                    b.compute("aten::chunk", 5 * US)
                    if from_host:
                        with b.op("aten::to"), b.op("aten::copy_"):
                            b.copy("HtoD (Pageable -> Device)", 1 << 20, 100 * US, blocking=True)
                b.advance(10 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=device_ns)
            if trains:
                with b.op("autograd::engine::evaluate_function: MmBackward0"):
                    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=device_ns)
        b.synchronize()

    return b


def test_on_one_device_it_costs_what_comes_before_the_model(found: Found) -> None:
    # 50 µs until the inputs are apart, and the GPU has nothing to do for 70 of a step's 80.
    (finding,) = found(build_on_one_device(), RULE)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (3 * 50 * US, 50 * US)
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence) == ("warning", "high")
    assert finding.evidence["n_devices"] == 1
    assert finding.evidence["host_ns"] == 3 * 50 * US
    assert finding.evidence["device_ns"] == 0
    assert sum(end - start for start, end in finding.spans) == finding.cost.ns

    (location,) = finding.locations
    assert (location.file, location.line) == ("train.py", 10)
    assert finding.message == (
        "`DataParallel` around the model called in train_step (train.py:10) runs it on one GPU, "
        "once per step, and takes the host 50.0 µs per step to traverse parameters and inputs for "
        "nothing. The GPU is idle for 70.0 µs per step."
    )
    assert finding.fix.startswith("Remove `DataParallel(...)`")


def test_the_module_itself_is_the_fix(found: Found) -> None:
    assert found(build_on_one_device(call="nn.Module: Net"), RULE) == ()


def test_a_device_that_always_has_work_loses_nothing_but_it_is_worth_a_note(
    found: Found,
) -> None:
    b = TraceBuilder()
    b.kernel("gemm", 10_000 * US)
    b.advance(5 * US)
    for _ in range(3):
        with b.step(), b.annotation(CALL):
            b.advance(40 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.cost.ns == 0


@pytest.mark.parametrize(("tail_ns", "severity"), [(4_920 * US, "warning"), (4_921 * US, "note")])
def test_a_hundredth_of_the_steps_is_the_border(found: Found, tail_ns: int, severity: str) -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            with b.annotation(CALL):
                b.advance(50 * US)
                b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=tail_ns)
            b.compute("aten::zeros", tail_ns + 20 * US)
    assert found(b, RULE)[0].severity == severity


def test_to_copy_inputs_from_the_host_is_needed_without_it_too(found: Found) -> None:
    (plain,), (copying,) = (
        found(build_on_one_device(), RULE),
        found(build_on_one_device(from_host=True), RULE),
    )
    assert copying.evidence["host_ns"] == plain.evidence["host_ns"]
    assert copying.evidence["device_ns"] == 0


def test_without_inputs_to_take_apart_it_ends_at_the_first_operator(found: Found) -> None:
    (finding,) = found(build_on_one_device(scatter=False), RULE)
    assert finding.evidence["host_ns"] == 3 * 40 * US


def test_a_scatter_of_the_model_s_own_is_the_model_s(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.annotation(CALL):
            b.advance(40 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
            b.compute("Scatter", 70 * US)
            b.compute("Gather", 70 * US)
    (finding,) = found(b, RULE)
    assert finding.evidence["host_ns"] == 3 * 40 * US


def test_one_wrapper_within_another_is_counted_once(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.annotation(CALL), b.annotation(CALL):
            b.advance(40 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
    (finding,) = found(b, RULE)
    assert finding.n == 3


def test_models_called_at_several_lines_are_all_named_the_longest_first(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for line, python_ns in ((10, 20 * US), (20, 90 * US)):
                with b.frame("gan.py", line, "play"), b.annotation(CALL):
                    b.advance(python_ns)
                    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=5 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert [location.line for location in finding.locations] == [20, 10]
    assert finding.n == 6


def build_on_two_devices(*, trains: bool = True) -> TraceBuilder:
    """Two replicas on threads of their own, and 200 µs of compute on each device."""
    b = TraceBuilder(device_names=("NVIDIA H200",) * 2)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            with b.annotation(CALL):
                b.advance(20 * US)
                with b.op("Scatter", self_ns=6 * US):
                    b.copy("PtoP", 1 << 20, 10 * US, blocking=False, device=1)
                with b.op("Broadcast", self_ns=6 * US):
                    ident = b.call("LaunchKernel", 4 * US)
                    b.kernel("ncclDevKernel_Broadcast", 60 * US, correlation=ident, device=0)
                    b.kernel("ncclDevKernel_Broadcast", 60 * US, correlation=ident, device=1)
                b.advance(10 * US)  # to build the replicas
                for device in (0, 1):
                    with b.thread(REPLICA + device):
                        ident = b.call("LaunchKernel", 10 * US)
                        b.kernel("gemm", 200 * US, correlation=ident, device=device)
                with b.op("Gather", self_ns=6 * US):
                    b.copy("PtoP", 1 << 10, 5 * US, blocking=False, device=0)
            if trains:
                with b.thread(AUTOGRAD), b.op("BroadcastBackward"), b.op("ReduceAddCoalesced"):
                    b.launch("aten::add_", kernel="add", host_ns=10 * US, device_ns=30 * US)
            b.synchronize()

    return b


def test_on_several_devices_it_costs_copies_and_gradients_put_together(found: Found) -> None:
    (finding,) = found(build_on_two_devices(), RULE)

    # On the host: 20 + 10 (Scatter) + 10 (Broadcast) + 10 before the replicas, then 10 (Gather)
    # and 10 in the backward pass.
    assert finding.evidence["n_devices"] == 2
    assert finding.evidence["host_ns"] == 3 * 70 * US
    # The copy of inputs runs from 30 to 40 µs; the broadcast from 40 to 100 on both devices; then
    # both compute until 300; the copy of outputs and the sum of gradients take 35 more.
    assert finding.evidence["device_ns"] == 3 * (10 + 60 + 35) * US
    # Nothing is computed from 0 to 100 and from 300 to 335: as the wrapper has its hand in it.
    assert finding.evidence["device_idle_otherwise_ns"] == 3 * 135 * US
    assert sum(end - start for start, end in finding.spans) == 3 * 135 * US
    assert finding.severity == "warning"
    assert finding.message == (
        "`DataParallel` around the model called in train_step (train.py:10) copies it to 2 GPUs "
        "once per step, which takes the host 70.0 µs per step and the GPUs 105 µs per step. They "
        "compute nothing else for 135 µs per step."
    )
    assert "torchrun --nproc-per-node=2" in finding.fix
    assert "`DistributedDataParallel(model, device_ids=[local_rank])`" in finding.fix


def test_without_the_wrapper_the_threads_of_the_replicas_start_earlier(found: Found) -> None:
    (finding,) = found(build_on_two_devices(), RULE)
    # A step ends at 335 µs. Without the 50 µs on the host before the first replica its product runs
    # from 10 to 210 and that of the second from 20 to 220, where the step ends.
    assert finding.cost.ns == pytest.approx(3 * (335 - 220) * US, abs=10 * US)


def test_inference_on_several_devices_needs_no_collectives(found: Found) -> None:
    (finding,) = found(build_on_two_devices(trains=False), RULE)
    assert "torchrun --nproc-per-node=2" in finding.fix
    assert "DistributedDataParallel" not in finding.fix


@pytest.mark.parametrize(
    "call",
    [
        "DistributedDataParallel.forward",
        "FullyShardedDataParallel.forward",
        "MyDataParallel.forward",
        "DataParallel.forward.inner",
    ],
)
def test_what_is_only_called_like_it_is_not_reported(found: Found, call: str) -> None:
    assert found(build_on_one_device(call=call), RULE) == ()


def test_a_class_of_the_user_s_by_that_name_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.module("DataParallel"), b.frame("my/data_parallel.py", 9, "forward"):
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
    assert found(b, RULE) == ()


@pytest.mark.parametrize("function", ["forward", "data_parallel"])
def test_python_frames_identify_it_without_an_annotation(found: Found, function: str) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with (
            b.step(),
            b.frame("train.py", 10, "train_step"),
            b.frame("torch/nn/parallel/data_parallel.py", 147, function),
        ):
            b.advance(40 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
    (finding,) = found(b, RULE)
    assert finding.n == 3
    assert (finding.locations[0].file, finding.locations[0].line) == ("train.py", 10)


def test_calls_outside_the_steps_are_not_charged_to_them(found: Found) -> None:
    b = TraceBuilder()
    with b.annotation(CALL):
        b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=50 * US)
    assert found(b, RULE) == ()


def test_without_steps_the_recording_is_judged_as_a_whole(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.annotation(CALL):
            b.advance(40 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=20 * US)
    (finding,) = found(b, RULE)
    # From the first kernel's start to the last one's end: 50 + 20 µs, of which 30 idle.
    assert finding.evidence["device_idle_otherwise_ns"] == 30 * US
    # The recording takes 120 µs. Without the wrapper the launches end at 10 and 20, and the kernels
    # run from 10 to 30 and, after a switch of 1, from 31 to 51.
    assert (finding.cost.ns, finding.cost.per_step_ns) == (69 * US, None)
    assert finding.locations == ()


@pytest.mark.parametrize("vendor", ["rocm", "xpu"])
def test_other_vendors_run_data_parallel_too(vendor: str, tmp_path: Path) -> None:
    path = build_on_one_device().write(tmp_path / "t.json", Format(vendor=vendor))  # type: ignore[arg-type]
    (finding,) = analyze(path, select=[RULE], strict=True).findings
    assert finding.evidence["host_ns"] == 3 * 50 * US


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step(), b.annotation(CALL):
        b.compute("aten::mm", 10 * US)
    report = analyzed(b, RULE)
    assert report.findings == ()
    assert [check.rule for check in report.unchecked] == ["COM002"]
