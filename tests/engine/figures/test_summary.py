"""The figures of a report match the trace that was built."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.report import Report
from profkit.testing import TraceBuilder

Report_ = Callable[[TraceBuilder], Report]


@pytest.fixture
def report(tmp_path: Path) -> Report_:
    def _report(builder: TraceBuilder) -> Report:
        return analyze(builder.write(tmp_path / "t.json"), strict=True)

    return _report


def test_operators_have_total_self_and_device_time(report: Report_) -> None:
    builder = TraceBuilder()
    for _ in range(2):
        with builder.op("aten::linear", self_ns=1_000):
            builder.launch("aten::addmm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    linear, addmm = report(builder).summary.top_ops
    assert (linear.name, linear.n_calls) == ("aten::linear", 2)
    assert (linear.total_ns, linear.self_ns, linear.device_ns) == (20_000, 2_000, 0)
    assert (addmm.total_ns, addmm.self_ns, addmm.device_ns) == (18_000, 18_000, 10_000)


def test_kernels_have_count_mean_share_and_the_line_with_most_of_their_time(
    report: Report_,
) -> None:
    builder = TraceBuilder(stacks=True)
    for line, device_ns in ((3, 1_000), (8, 5_000), (3, 1_000)):
        with builder.frame("net.py", line, f"f{line}"):
            builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=device_ns)
    builder.launch("aten::add", kernel="add", host_ns=9_000, device_ns=1_000)
    gemm, add = report(builder).summary.top_kernels
    assert (gemm.name, gemm.n_calls, gemm.total_ns, gemm.mean_ns) == ("gemm", 3, 7_000, 2_333)
    assert (gemm.share, add.share) == (7 / 8, 1 / 8)
    assert gemm.op == "aten::mm"
    assert gemm.location is not None
    assert gemm.location.line == 8


def test_steps_have_busy_idle_data_and_sync_time(report: Report_) -> None:
    builder = TraceBuilder()
    with builder.step():
        builder.load(10_000)
        builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=20_000)
        waited = builder.synchronize()
    (step,) = report(builder).summary.steps
    assert (step.dur_ns, step.gpu_busy_ns) == (15_000 + waited, 20_000)
    assert step.gpu_idle_ns == step.dur_ns - 20_000
    assert (step.data_wait_ns, step.sync_ns) == (10_000, waited)


def test_each_step_has_the_parts_of_its_time(report: Report_) -> None:
    builder = TraceBuilder()
    for loading_ns in (10_000, 30_000):
        with builder.step():
            builder.load(loading_ns)
            builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=20_000)
            builder.synchronize()
    summary = report(builder).summary
    parts = [{part.kind: part.ns for part in step.parts} for step in summary.steps]
    assert [part_ns["compute"] for part_ns in parts] == [20_000, 20_000]
    assert [part_ns["idle-data"] for part_ns in parts] == [10_000, 30_000]
    assert [sum(part_ns.values()) for part_ns in parts] == [step.dur_ns for step in summary.steps]
    assert summary.breakdown is not None
    for part in summary.breakdown.parts:
        assert part.ns == sum(part_ns.get(part.kind, 0) for part_ns in parts)


def test_waits_for_collectives_on_a_cpu_are_exposed_communication(report: Report_) -> None:
    builder = TraceBuilder(device_names=())
    with builder.step():
        builder.compute("aten::mm", 30_000)
        with builder.op("SyncBatchNorm"):
            with builder.thread(3000), builder.annotation("gloo:all_reduce"):
                builder.advance(50_000)
            builder.compute("aten::add", 5_000)
        builder.advance(7_000)
    (step,) = report(builder).summary.steps
    assert {part.kind: part.ns for part in step.parts} == {
        "communication": 50_000,
        "operators": 35_000,
        "python": 7_000,
    }


def test_regions_are_annotations_with_the_device_time_launched_inside(report: Report_) -> None:
    builder = TraceBuilder()
    with builder.step():
        builder.load(1_000)
        with builder.annotation("forward"):
            builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=2_000)
        framing = builder.annotation("Optimizer.step#SGD.step")
        with framing, builder.annotation("backward"), builder.thread(7):
            builder.launch("aten::mm", kernel="gemm", host_ns=6_000, device_ns=3_000)
    regions = [
        (r.name, r.n_calls, r.total_ns, r.device_ns) for r in report(builder).summary.regions
    ]
    assert regions == [("backward", 1, 6_000, 3_000), ("forward", 1, 5_000, 2_000)]


def test_syncs_and_copies_are_counted_by_call_and_by_kind(report: Report_) -> None:
    builder = TraceBuilder()
    for _ in range(2):
        builder.to_host(4_096, 1_000)
    summary = report(builder).summary
    assert [(s.call, s.n_calls) for s in summary.syncs] == [("cudaStreamSynchronize", 2)]
    (copy,) = summary.copies
    assert (copy.kind, copy.n_calls) == ("Memcpy DtoH (Device -> Pageable)", 2)
    assert (copy.total_ns, copy.bytes) == (2_000, 8_192)


def test_memory_has_the_bytes_that_the_window_did_not_free(report: Report_) -> None:
    builder = TraceBuilder(memory=True)
    kept, freed = builder.alloc(100), builder.alloc(30)
    builder.free(freed)
    builder.free_earlier(7)
    assert kept
    memory = report(builder).summary.memory
    assert memory is not None
    assert (memory.n_events, memory.n_unfreed, memory.unfreed_bytes) == (4, 1, 100)
    assert memory.n_frees_of_earlier == 1
    assert [(peak.device, peak.bytes) for peak in memory.peak] == [("cuda:0", 130)]


def test_the_source_describes_the_recording(report: Report_) -> None:
    builder = TraceBuilder(stacks=True, head={"distributedInfo": {"rank": 1, "world_size": 4}})
    builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=2_000)
    source = report(builder).source
    assert (source.kind, source.rank, source.world_size) == ("trace", 1, 4)
    assert source.devices == ("NVIDIA H200",)
    assert source.recorded_with.stacks is True
    assert source.step_definition == ""


def test_an_empty_trace_has_a_report(report: Report_) -> None:
    empty = report(TraceBuilder())
    assert empty.summary.window_ns == 0
    assert not empty.findings
    assert empty.unchecked
