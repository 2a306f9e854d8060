"""Real traces that an expert judged: what is true of them, computed from their JSON."""

from typing import Any

import pytest

from profkit.api import render
from profkit.engine.context import Context
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from tests.corpus.recordings import TRACES, needs_corpus, raw_events, report_on, trace_path
from tests.traces import load_trace

pytestmark = needs_corpus

Entry = dict[str, Any]


def report_of(name: str) -> Report:
    return report_on(trace_path(name))


def findings_of(name: str, rule: str) -> list[Finding]:
    report = report_of(name)
    return [finding for finding in (*report.findings, *report.health) if finding.rule == rule]


def test_launches_without_correlation_are_joined_by_their_flows() -> None:
    name = "rocm-gemm-no-correlation"
    events = raw_events(name)
    calls = {e["args"]["External id"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime"}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    expected = {e["ts"]: calls[e["args"]["External id"]] for e in kernels}
    trace = load_trace(trace_path(name))
    ctx = Context(trace)
    pairs = zip(ctx.launches.work.tolist(), ctx.launches.launch.tolist(), strict=True)
    start_us = min(e["ts"] for e in events if e["ph"] == "X")

    launched_us = {
        trace.events.ts_ns[work] / 1000 + start_us: trace.events.ts_ns[launch] / 1000 + start_us
        for work, launch in pairs
    }
    assert launched_us == expected
    assert {trace.events.name_of(op) for op in ctx.launches.op} == {"aten::mm"}


def test_no_device_event_of_a_trace_without_correlation_is_lost() -> None:
    assert findings_of("rocm-gemm-no-correlation", "PRF004") == []


def test_the_end_of_a_benchmark_harness_may_synchronize() -> None:
    assert findings_of("rocm-gemm-no-correlation", "SYN002") == []


def test_a_launch_that_loads_code_is_not_queued_work() -> None:
    name = "v100-resnet50-no-profiler-steps"
    events = [e for e in raw_events(name) if e.get("ph") == "X"]
    work = sorted(
        (e["ts"], e["ts"] + e["dur"], e["args"]["correlation"])
        for e in events
        if e.get("cat") in ("Kernel", "Memcpy", "Memset")
    )
    ended = {
        e["args"]["correlation"]: e["ts"] + e["dur"]
        for e in events
        if e.get("cat") == "Runtime" and "correlation" in e["args"]
    }
    queued_us, busy_until = 0.0, work[0][1]
    for start, end, ident in work:
        if start > busy_until and ended[ident] <= busy_until:
            queued_us += start - busy_until
        busy_until = max(busy_until, end)
    (device,) = report_of(name).summary.devices

    idle_ns = {cause.cause: cause.ns for cause in device.idle_causes}
    # Copies whose call waits for a kernel are queued too: a thousandth of the idle time.
    assert queued_us * 1000 <= idle_ns["device"] <= queued_us * 1000 + device.idle_ns / 1000
    assert idle_ns["device"] < 0.01 * device.idle_ns


def test_a_copy_takes_no_longer_than_its_call() -> None:
    name = "v100-resnet50-no-profiler-steps"
    assert not [f for f in findings_of(name, "DAT002") if "112 B" in f.message]
    ctx = Context(load_trace(trace_path(name)))
    rows = ctx.syncs.rows[ctx.events.n_bytes.at(ctx.syncs.copy) == 112]
    assert len(rows)
    assert {ctx.events.name_of(row) for row in rows} == {"cudaMemcpy"}
    assert ctx.events.dur_ns[rows].max() <= 25_000


def test_copies_and_kernels_of_another_producer_are_device_work() -> None:
    name = "bracketed-copies"
    events = raw_events(name)
    report = report_of(name)
    (device,) = report.summary.devices
    assert (device.n_kernels, device.n_memcpy, device.device) == (100, 200, "cuda:0")
    to_host = [e for e in events if e["name"].endswith("DtoH")]
    kinds = {copy.kind: (copy.n_calls, copy.total_ns) for copy in report.summary.copies}
    assert kinds["[MEMCPY] DtoH"] == (100, round(1000 * sum(e["dur"] for e in to_host)))
    assert kinds["[MEMCPY] HtoD"][0] == 100
    assert "CPU" not in headline(report)
    assert "The GPU is idle 71%" in headline(report)


def test_steps_of_a_loader_and_an_optimizer_are_found_without_profiler_steps() -> None:
    for name, n in (("loader-waits-without-steps", 30), ("v100-resnet50-no-profiler-steps", 6)):
        events = [e for e in raw_events(name) if e.get("ph") == "X" and "dur" in e]
        waits = sorted(e["ts"] for e in events if e["name"].startswith("enumerate(DataLoader)"))
        ends = [e["ts"] + e["dur"] for e in events if e["name"].startswith("Optimizer.step#")]
        report = report_of(name)
        steps = report.summary.steps
        assert report.source.step_origin == "loader"
        assert len(steps) == len(waits) == len(ends) == n
        assert report.summary.n_incomplete_steps == 0
        lengths = [b - a for a, b in zip(waits, [*waits[1:], max(ends)], strict=True)]
        step_ms = [step.dur_ns / 1000 for step in steps]
        assert step_ms == pytest.approx(lengths, abs=1)


def test_all_waits_of_a_loader_without_profiler_steps_are_named() -> None:
    name = "loader-waits-without-steps"
    waits = [
        e["dur"]
        for e in raw_events(name)
        if e.get("ph") == "X" and e["name"].startswith("enumerate(DataLoader)")
    ]
    (finding,) = findings_of(name, "DAT001")
    assert finding.n == len(waits) == 30
    steps = report_of(name).summary.steps
    waited_us = sum(step.data_wait_ns for step in steps) / 1000
    assert waited_us == pytest.approx(sum(waits), abs=30)
    assert waited_us == pytest.approx(8.2e6, rel=0.01)


def test_a_remnant_of_a_step_is_in_no_figure() -> None:
    report = report_of("cpu-vae-one-step")
    assert not report.summary.steps
    assert report.summary.n_incomplete_steps == 1
    assert report.summary.breakdown is not None
    assert report.summary.breakdown.per_step_ns is None
    assert "no complete step" in headline(report)
    assert b"1 incomplete step excluded" in render(report, "text")


def test_recordings_without_a_loop_have_no_steps() -> None:
    for name in (
        "b200-eager-inference",
        "bracketed-copies",
        "cupti-ranges-no-kernels",
        "inference-with-autograd-on",
        "legacy-autograd-array",
        "mtia-inference",
        "randn-on-host-then-moved",
        "rocm-gemm-no-correlation",
        "sglang-decode",
        "switch-transformer-inference",
    ):
        report = report_of(name)

        assert not report.summary.steps
        assert not report.source.step_definition


def test_where_the_host_runs_ahead_the_step_time_is_the_gpus() -> None:
    name = "mi300-resnet-ddp"
    events = [e for e in raw_events(name) if e.get("ph") == "X" and "dur" in e]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"
    )
    called = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e["cat"] == "cuda_runtime" and "correlation" in e.get("args", {})
    }
    completed = [
        max(
            e["ts"] + e["dur"]
            for e in events
            if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
            and start <= called.get(e["args"].get("correlation"), -1) < end
        )
        for start, end in steps
    ]
    report = report_of(name)

    device_ns = [step.device_dur_ns for step in report.summary.steps]
    assert [ns / 1000 for ns in device_ns[1:] if ns is not None] == pytest.approx(
        [completed[1] - completed[0], completed[2] - completed[1]], abs=1
    )

    breakdown = report.summary.breakdown
    assert breakdown is not None
    assert breakdown.host_per_step_ns is not None
    assert breakdown.host_per_step_ns / 1000 == pytest.approx(
        sum(end - start for start, end in steps) / 3, abs=1
    )
    assert breakdown.per_step_ns == round(sum(ns or 0 for ns in device_ns) / 3)
    assert "each 18.8 ms step (" in headline(report)
    assert "16.2 ms on the host, which runs ahead" in headline(report)


def test_where_the_device_keeps_up_the_step_time_is_the_hosts() -> None:
    for name in ("v100-resnet50-loader-0-workers", "graph-kernels-missing", "h100-qwen-inference"):
        report = report_of(name)
        assert all(step.device_dur_ns is None for step in report.summary.steps)
        assert "runs ahead" not in headline(report)


def test_a_trace_in_which_nothing_was_recorded_says_so() -> None:
    name = "nothing-recorded"
    kinds = {e.get("cat") for e in raw_events(name) if e["ph"] == "X"}
    assert kinds == {"cuda_runtime", "overhead", "Trace"}
    (fault,) = findings_of(name, "PRF008")
    assert fault.severity == "warning"
    assert headline(report_of(name)).startswith("The recording of 77.9 s has no operator")
    for other_path in {*TRACES.iterdir()} - {trace_path(name)}:
        assert "PRF008" not in {finding.rule for finding in report_on(other_path).health}, (
            other_path
        )


def test_a_few_kernels_and_a_mostly_idle_device_are_launch_bound() -> None:
    name = "transformer-few-kernels-idle"
    kernels = [e for e in raw_events(name) if e.get("cat") == "kernel"]
    (finding,) = findings_of(name, "KER001")
    assert finding.evidence["n_kernels_per_step"] == round(len(kernels) / 3) == 16
    assert finding.confidence == "low"


RIGHT = {
    "COM001": "a100-embedding-rank3-of-8 mi300-resnet-ddp rank0-of-128 rank1-of-128",
    "DAT001": "mi300-owlv2-inference v100-resnet50-loader-0-workers",
    "DAT003": "graph-kernels-missing",
    "KER001": "a100-ddp-rank0-of-2 b200-eager-inference v100-ddp-404-allreduces",
    "KER002": "switch-transformer-inference",
    "PRF001": "cpu-vae-windows-3-steps",
    "PRF002": "graph-kernels-missing h100-qwen-inference mi300-resnet-ddp",
    "PRF003": "a100-ddp-rank0-of-2 loader-waits-without-steps v100-ddp-404-allreduces",
}
"""Findings that the expert found right, and that no better model of costs may lose."""


@pytest.mark.parametrize(("rule", "names"), RIGHT.items(), ids=RIGHT)
def test_what_was_rightly_found_still_is(rule: str, names: str) -> None:
    for name in names.split():
        assert findings_of(name, rule), name


def test_a_frame_that_was_open_when_recording_began_has_no_line() -> None:
    report = report_of("cpu-vae-module-level-frame")
    finding_of = {finding.rule: finding for finding in report.findings}
    (location, *_) = finding_of["MEM014"].locations
    assert (location.line, location.function) == (None, "<module>")
    assert location.place == "vae_mnist_working.py"
    assert "141" not in finding_of["MEM014"].message


@pytest.mark.parametrize(
    "name", ["v100-resnet50-loader-0-workers", "v100-resnet50-loader-4-workers"]
)
def test_batches_that_are_moved_are_told_to_be_pinned(name: str) -> None:
    (finding,) = findings_of(name, "DAT002")
    assert "pin_memory=True" in finding.fix


@pytest.mark.parametrize(
    ("name", "rule", "least_ms", "most_ms"),
    [
        ("mi300-owlv2-inference", "DAT002", 2.9, 2.9),
        ("mi300-owlv2-inference", "SYN003", 5.2, 5.9),
        ("switch-transformer-inference", "SYN001", 14.6, 14.6),
        ("graph-kernels-missing", "SYN003", 0.0, 5 * 2.7),
        ("mi300-timesformer-inference", "SYN003", 0.7, 0.7),
        ("loader-waits-without-steps", "DAT002", 1986.0, 2010.0),
        ("loader-waits-without-steps", "DAT001", 0.8 * 8200.0, 8200.0),
    ],
)
def test_a_finding_on_waits_states_what_they_are_known_to_cost(
    name: str, rule: str, least_ms: float, most_ms: float
) -> None:
    costs = [finding.cost for finding in findings_of(name, rule)]
    assert {cost.basis for cost in costs} == {"replay"}
    # The range from all latencies kept to all hidden meets the known cost.
    assert sum(cost.low_ns or 0 for cost in costs) / 1e6 <= 1.15 * most_ms
    assert sum(cost.high_ns or 0 for cost in costs) / 1e6 >= 0.85 * least_ms
    assert sum(cost.ns or 0 for cost in costs) / 1e6 <= 1.15 * most_ms


@pytest.mark.parametrize("name", ["sglang-decode", "graph-kernels-missing"])
def test_a_device_that_works_on_what_was_not_recorded_is_not_idle(name: str) -> None:
    report = report_of(name)
    (finding,) = findings_of(name, "PRF009")
    assert finding.severity == "warning"
    assert "The trace is incomplete" in headline(report)
    assert "idle" not in headline(report)
    shortest_ns = 0.01 * report.summary.window_ns
    most_ns = 0.03 * sum(s.dur_ns for s in report.summary.steps) or shortest_ns
    waits = [f for f in report.findings if f.rule.startswith(("SYN", "DAT"))]
    assert all((wait.cost.high_ns or 0) <= most_ns for wait in waits)


def test_collectives_without_kernels_are_counted() -> None:
    (finding,) = findings_of("graph-kernels-missing", "PRF009")
    assert "5 collectives more were issued than ran" in finding.message


def test_a_caching_allocator_that_is_off_is_the_first_thing_said() -> None:
    name = "mi300-resnet18-allocator-off"
    events = [e for e in raw_events(name) if e.get("ph") == "X"]
    freed_us = sum(e["dur"] for e in events if e["name"] == "hipFree")
    (finding,) = findings_of(name, "MEM018")
    assert findings_of(name, "MEM002") == []
    assert finding.severity == "warning"
    assert finding.cost.ns is not None
    assert 0.8 * freed_us <= finding.cost.ns / 1000 <= freed_us
    assert "hipFree" in headline(report_of(name))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mi300-timesformer-inference", "normalize"),
        ("inference-with-autograd-on", "Cold start"),
        ("v100-resnet50-no-profiler-steps", "The first step takes 4.49 s, 3.55 s of it"),
        ("randn-on-host-then-moved", "tensor created on the host and copied to the GPU"),
        ("transformer-few-kernels-idle", "GPU idle waiting for kernel launches"),
    ],
)
def test_the_headline_names_the_largest_part(name: str, said: str) -> None:
    assert said in headline(report_of(name))


def test_all_parts_of_every_step_add_up() -> None:
    for path in sorted(TRACES.iterdir()):
        for step in report_of(path.name.removesuffix(".json.gz")).summary.steps:
            assert sum(part.ns for part in step.parts) == step.time_ns, path.name


@pytest.mark.parametrize(
    ("name", "n_operators"),
    [
        ("v100-resnet50-loader-0-workers", 483),
        ("v100-resnet50-loader-4-workers", 483),
        ("v100-resnet50-no-profiler-steps", 456),
        ("v100-ddp-404-allreduces", 404),
        ("cpu-vae-windows-3-steps", 80),
    ],
)
def test_an_optimizer_that_loops_over_parameters_is_named(name: str, n_operators: int) -> None:
    marks = [e for e in raw_events(name) if e.get("name", "").startswith("Optimizer.step#")]
    (finding,) = findings_of(name, "KER004")
    assert finding.evidence["n_operators_per_step"] == n_operators
    assert finding.evidence["host_ns"] == round(1000 * sum(e["dur"] for e in marks))
    assert (finding.cost.ns or 0) < round(1000 * sum(e["dur"] for e in marks))


def test_foreach_and_fused_steps_are_not_reported() -> None:
    for name in (
        "a100-ddp-rank0-of-2",
        "a100-embedding-rank3-of-8",
        "cpu-vae-one-step",
        "graph-kernels-missing",
        "loader-waits-without-steps",
        "mi300-resnet-ddp",
        "mi300-resnet18-allocator-off",
        "rank0-of-128",
        "rank1-of-128",
    ):
        assert findings_of(name, "KER004") == [], name


@pytest.mark.parametrize("name", ["mi300-owlv2-inference", "mi300-timesformer-inference"])
def test_decomposed_attention_is_three_quarters_of_the_device_time(name: str) -> None:
    (finding,) = findings_of(name, "KER005")
    assert finding.severity == "warning"
    share = finding.evidence["busy_share"]
    assert isinstance(share, float)
    assert 0.70 <= share <= 0.80


def test_a_gate_and_fused_attention_are_not_decomposed_attention() -> None:
    for name in (
        "a100-embedding-rank3-of-8",
        "h100-qwen-inference",
        "mi300-vit-inference",
        "rank0-of-128",
        "b200-eager-inference",
        "v100-ddp-404-allreduces",
        "v100-resnet50-loader-0-workers",
    ):
        assert findings_of(name, "KER005") == [], name


def test_transposes_around_convolutions_are_counted_as_in_the_file() -> None:
    name = "mi300-resnet18-allocator-off"
    transposes = [e for e in raw_events(name) if e["name"].startswith("batched_transpose")]
    (finding,) = findings_of(name, "KER006")
    assert len(transposes) == 885
    assert finding.n == 885 * 4 // 5  # one of five equal iterations is in no step

    spent_ns = 1000 * sum(e["dur"] for e in transposes)
    assert spent_ns == pytest.approx(58.8e6, rel=0.001)
    assert finding.evidence["transposes_ns"] == pytest.approx(spent_ns * 4 / 5, rel=0.02)
    for other_name in ("a100-ddp-rank0-of-2", "mi300-resnet-ddp"):
        assert len(findings_of(other_name, "KER006")) == 1
    for other_name in (
        "v100-resnet50-loader-0-workers",
        "inference-with-autograd-on",
        "mi300-vit-inference",
    ):
        assert findings_of(other_name, "KER006") == []


def test_elementwise_kernels_are_a_finding_where_they_are_most_of_the_kernel_time() -> None:
    name = "h100-qwen-inference"
    kernels = [e for e in raw_events(name) if e.get("cat") == "kernel"]
    elementwise = [e["dur"] for e in kernels if "elementwise_kernel" in e["name"]]
    (finding,) = findings_of(name, "KER007")
    share = sum(elementwise) / sum(e["dur"] for e in kernels)
    # That of the step, which begins a little later than the recording.
    assert finding.evidence["kernel_share"] == pytest.approx(share, abs=0.002)
    assert share == pytest.approx(0.546, abs=0.001)


def test_copies_of_every_layer_into_another_layout_are_named() -> None:
    (finding,) = findings_of("h100-qwen-inference", "KER008")
    assert finding.n == 24 * 4
    assert "`.contiguous()`" in finding.message


def test_the_search_for_algorithms_agrees_with_the_file() -> None:
    name = "v100-resnet50-no-profiler-steps"
    waits = [
        e["dur"]
        for e in raw_events(name)
        if e.get("name") == "cudaEventSynchronize" and e.get("cat") == "Runtime"
    ]
    (finding,) = findings_of(name, "CFG001")
    assert finding.evidence["n_algorithms"] == len(waits) == 357
    assert finding.evidence["waits_ns"] == 1000 * sum(waits) == pytest.approx(424e6, rel=0.001)
    for other_name in ("a100-ddp-rank0-of-2", "rocm-vllm-graph", "loader-waits-without-steps"):
        assert findings_of(other_name, "CFG001") == []


def idle_us(start: float, end: float, work: list[tuple[float, float]]) -> float:
    """Microseconds of a period in which no work ran; the work is sorted by start."""
    idle, busy_until = 0.0, start
    for begin, done in work:
        if begin >= end:
            break
        idle += max(0.0, begin - busy_until)
        busy_until = max(busy_until, done)
    return idle + max(0.0, end - busy_until)


@pytest.mark.parametrize(
    "name",
    [
        "switch-transformer-inference", "inference-with-autograd-on", "loader-waits-without-steps",
        "v100-resnet50-no-profiler-steps",
    ],
)  # fmt: skip
def test_long_calls_on_an_idle_gpu_are_a_cold_start(name: str) -> None:
    events = [e for e in raw_events(name) if e.get("ph") == "X" and "dur" in e]
    kinds = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in kinds)
    cold = [
        e["dur"]
        for e in events
        if e.get("cat") in {"cuda_runtime", "Runtime"}
        and not any(part in e["name"] for part in ("Synchronize", "Memcpy"))
        and e["dur"] >= 10_000  # the GPU is idle for no longer than the call lasts
        and idle_us(e["ts"], e["ts"] + e["dur"], work)
        >= (100_000 if e["name"] in {"cudaMalloc", "cudaFree"} else 10_000)
    ]

    (finding,) = findings_of(name, "PRF010")
    assert finding.n == len(cold)
    assert finding.evidence["calls_ns"] == pytest.approx(1000 * sum(cold), rel=1e-4)
    assert finding.cost.ns == pytest.approx(1000 * sum(cold), rel=0.01)


def test_recordings_of_warm_programs_have_no_cold_start() -> None:
    for name in ("h100-qwen-inference", "mi300-resnet18-allocator-off", "a100-ddp-rank0-of-2"):
        assert findings_of(name, "PRF010") == []


def test_the_function_that_keeps_the_gpu_idle_is_named() -> None:
    name = "mi300-timesformer-inference"
    calls = [
        e["dur"]
        for e in raw_events(name)
        if e.get("cat") == "python_function" and e["name"].endswith(": preprocess")
    ]
    (finding,) = findings_of(name, "CPU002")
    assert "mostly `preprocess()` of transformers" in finding.message
    assert 0.85 * max(calls) < (finding.cost.ns or 0) / 1000 < max(calls)


def test_the_pause_before_a_fallback_is_the_fuser_of_torchscript() -> None:
    name = "inference-with-autograd-on"
    events = [e for e in raw_events(name) if e.get("cat") in {"cpu_op", "cuda_runtime"}]
    call = min(e["ts"] for e in events if e["name"] == "delta_r2")
    before = max(e["ts"] + e["dur"] for e in events if e["ts"] < call)
    (finding,) = findings_of(name, "CMP004")
    assert finding.cost.ns == pytest.approx(1000 * (call - before), rel=1e-4)


def test_a_tensor_that_is_made_on_the_host_costs_its_making() -> None:
    name = "randn-on-host-then-moved"
    events = [e for e in raw_events(name) if e.get("ph") == "X" and "dur" in e]
    made = sum(e["dur"] for e in events if e["name"] == "aten::randn")
    copied = sum(e["dur"] for e in events if e["name"] == "cudaMemcpyAsync")
    (finding,) = findings_of(name, "DAT003")
    assert finding.cost.ns == pytest.approx(1000 * (made + copied), rel=0.001)


def test_products_of_odd_sizes_are_slower_than_products_of_round_ones() -> None:
    name = "a100-embedding-rank3-of-8"
    events = [e for e in raw_events(name) if e.get("ph") == "X"]
    kernels = {e["args"]["correlation"]: e for e in events if e.get("cat") == "kernel"}
    launches = [e for e in events if e["name"] == "cudaLaunchKernel"]

    def mean_us(*sizes: list[int]) -> float:
        kernel_us = [
            kernels[launch["args"]["correlation"]]["dur"]
            for op in events
            if op["name"] == "aten::mm" and op["args"].get("Input Dims", [])[:2] == [*sizes]
            for launch in launches
            if launch["tid"] == op["tid"] and 0 <= launch["ts"] - op["ts"] < op["dur"]
        ]
        return sum(kernel_us) / len(kernel_us)

    odd, even = mean_us([1024, 1024], [1024, 1705]), mean_us([1024, 1024], [1024, 2048])
    assert odd > 1.8 * even
    (finding,) = findings_of(name, "KER009")
    assert (finding.severity, finding.cost.basis) == ("note", "estimate")
    slow_us = sum(e["dur"] for e in events if "align1" in e["name"] or "sgemm_" in e["name"])
    assert 0 < (finding.cost.ns or 0) / 1000 < slow_us / 2
    for other_name in ("rank0-of-128", "h100-qwen-inference", "b200-eager-inference"):
        assert findings_of(other_name, "KER009") == []


@pytest.mark.parametrize(
    ("name", "share"),
    [("inference-with-autograd-on", 0.99), ("switch-transformer-inference", 0.8)],
)
def test_the_graph_of_an_inference_holds_most_of_what_is_alive(name: str, share: float) -> None:
    changes: dict[int, int] = {}
    for e in raw_events(name):
        if e.get("name") == "[memory]" and e["args"]["Device Type"] == 1:
            address, n_bytes = e["args"]["Addr"], e["args"]["Bytes"]
            if n_bytes > 0:
                changes[address] = n_bytes
            else:
                changes.pop(address, None)
    (finding,) = findings_of(name, "MEM013")
    assert finding.cost.bytes is not None
    assert share * sum(changes.values()) <= finding.cost.bytes <= sum(changes.values())


@pytest.mark.parametrize(
    ("name", "at_least"),
    [("v100-resnet50-loader-0-workers", 0.55), ("v100-resnet50-loader-4-workers", 0.55),
     ("v100-ddp-404-allreduces", 0.35), ("loader-waits-without-steps", 0.4)],
)  # fmt: skip
def test_float32_on_gpus_before_ampere_is_named(name: str, at_least: float) -> None:
    (finding,) = findings_of(name, "KER011")
    share = finding.evidence["busy_share"]
    assert isinstance(share, float)
    assert at_least <= share <= 0.7
    assert findings_of(name, "KER002") == []


def test_weights_that_autocast_casts_are_counted() -> None:
    (finding,) = findings_of("inference-with-autograd-on", "KER012")
    assert (finding.n, finding.confidence) == (100, "low")


@pytest.mark.parametrize("rule", ["DAT004", "DAT005", "CMP003"])
def test_rules_without_a_cause_in_these_traces_are_silent(rule: str) -> None:
    for path in sorted(TRACES.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        if name != "legacy-autograd-array":
            assert findings_of(name, rule) == [], name
