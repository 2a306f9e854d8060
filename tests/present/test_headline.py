"""The headline says what limits the program, and gives the finding with the highest cost."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from profkit.api import analyze, render
from profkit.engine import needs
from profkit.model.capture_info import CaptureInfo, CpuTime
from profkit.model.device_summary import DeviceSummary
from profkit.model.finding import Cost
from profkit.model.report import Report, RunCost, Summary
from profkit.model.step_summary import TimePart
from profkit.present.diagnosis import headline, headline_sentences
from profkit.present.facts import busiest_ops, describe_recording, facts
from profkit.present.labels import cost_share, cost_text, ranking, step_time
from profkit.present.limiters import Candidate, Cause, choose
from profkit.testing import TraceBuilder
from profkit.units import format_ns
from tests.renderers import reports
from tests.sampled_steps import op_lines

_WAITED = (
    "waited for 90% of each 12.0 ms step on the CPU: for I/O, a lock, a timer or another process."
)


def with_breakdown(report: Report, **changes: object) -> Report:
    assert report.summary.breakdown is not None
    changed = replace(report.summary.breakdown, **changes)  # type: ignore[arg-type]
    return replace(report, summary=replace(report.summary, breakdown=changed))


def test_a_gpu_run_begins_with_what_the_gpu_does() -> None:
    assert headline(reports.build_gpu_report()).startswith(
        "The GPU is busy 61% of each 174 ms step and waits 37% for data. Highest cost: "
        "the loader starves the GPU at train.py:31, up to 65.0 ms per step (37%)."
    )


def test_a_cpu_run_gives_the_share_of_operators() -> None:
    text = headline(reports.build_cpu_report())
    assert text.startswith("Operators take 67% of each 12.0 ms step on the CPU: mostly aten::mm")


def test_step_time_comes_with_its_range() -> None:
    report = reports.build_gpu_report()
    first, *later_steps = report.summary.steps
    steps = (replace(first, dur_ns=150 * reports.MS), *later_steps)
    report = replace(report, summary=replace(report.summary, steps=steps))
    assert step_time(report) == "174 ms (150 ms to 176 ms)"
    assert step_time(reports.empty_report()) == ""


def test_steps_without_a_usual_length_come_with_their_range() -> None:
    report = reports.build_gpu_report()
    longer = [replace(step, dur_ns=9_000 * reports.MS) for step in report.summary.steps[-3:]]
    steps = (*report.summary.steps[:-3], *longer)
    report = replace(report, summary=replace(report.summary, steps=steps))
    assert "step (171 ms to 9.00 s) and waits" in headline(report)


def steps_of(*lengths_ms: int, tmp_path: Path) -> Report:
    """Analyze steps of one operator, 10 ms of it, and Python for the rest."""
    b = TraceBuilder(device_names=())
    for length_ms in lengths_ms:
        with b.step():
            b.advance((length_ms - 10) * reports.MS)
            b.compute("aten::mm", 10 * reports.MS)
    return analyze(b.write(tmp_path / "t.json"), strict=True)


def test_long_first_steps_are_described_apart(tmp_path: Path) -> None:
    text = headline(steps_of(400, 300, 12, 12, 12, 12, tmp_path=tmp_path))
    assert text.startswith(
        "The first 2 of 6 steps take 700 ms. Operators take 83% of each later 12.0 ms step"
    )
    assert "Warm up" not in text


def test_a_first_step_that_takes_less_than_the_others_together_comes_second(tmp_path: Path) -> None:
    text = headline(steps_of(60, 12, 12, 12, 12, 12, tmp_path=tmp_path))
    assert text.startswith(
        "Operators take 83% of each later 12.0 ms step on the CPU: aten::mm (83%). The "
    )
    assert "The first step takes 60.0 ms." in text


@pytest.mark.parametrize(
    ("lengths_ms", "expected"),
    [
        ((400, 12, 12, 300, 12, 12), "2 of 6 steps take 350 ms on average, the others 12.0 ms"),
        ((12, 12, 12, 400), "One of 4 steps takes 400 ms, the others 12.0 ms"),
    ],
)
def test_long_steps_that_are_not_a_start_are_told_first(
    lengths_ms: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    first, usual, _ = headline_sentences(steps_of(*lengths_ms, tmp_path=tmp_path))
    assert first.startswith(f"{expected}: 9")
    assert usual.startswith("Operators take 83% of each usual 12.0 ms step")


def test_a_step_of_another_kind_is_no_part_of_the_figures_of_the_others(tmp_path: Path) -> None:
    text = headline(steps_of(12, 12, 30, 12, 12, 12, tmp_path=tmp_path))
    assert text.startswith("Operators take 83% of each usual 12.0 ms step on the CPU: ")
    assert "One of 6 steps takes 30.0 ms, the others 12.0 ms: 67% outside operators." in text
    shorter = headline(steps_of(60, 60, 60, 12, tmp_path=tmp_path))
    assert "of each usual 60.0 ms step" in shorter
    assert "One of 4 steps takes 12.0 ms, the others 60.0 ms." in shorter


def test_the_usual_of_many_short_operators_is_not_told_as_python(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    for n_operators in (500, 520, 1_200):
        with b.step():
            for _ in range(n_operators):
                b.compute("aten::add", 3_000)
                b.advance(1_500)
    text = headline(analyze(b.write(tmp_path / "trace.json")))
    assert text.startswith("Operators take 67% of each usual 2.29 ms step on the CPU")
    # What the longer step does is the same.
    assert "One of 3 steps takes 5.40 ms, the others 2.29 ms. " in text


def test_a_prefill_is_told_apart_from_the_steps_that_decode(tmp_path: Path) -> None:
    text = headline(steps_of(41, 13, 14, tmp_path=tmp_path))
    assert "of each later 13.5 ms step" in text
    assert "The first step takes 41.0 ms." in text


@pytest.mark.parametrize(
    ("lengths_ms", "expected"),
    [
        ((12, 12, 14, 15, 14, 13), "each 13.3 ms step on"),
        ((*[12] * 20, 30), "each 12.9 ms step on"),
        ((40, 12), "each 26.0 ms step (12.0 ms to 40.0 ms) on"),
        ((12, 40, 12, 40), "each 26.0 ms step (12.0 ms to 40.0 ms) on"),
        ((12, 40, 12, 40, 12), "each 23.2 ms step (median 12.0 ms, 12.0 ms to 40.0 ms) on"),
    ],
)
def test_steps_are_described_together_unless_most_are_of_one_kind(
    lengths_ms: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    text = headline(steps_of(*lengths_ms, tmp_path=tmp_path))
    assert expected in text
    assert "One of" not in text


def test_a_cost_is_over_all_steps_where_some_are_described_apart(tmp_path: Path) -> None:
    report = steps_of(12, 12, 30, 12, 12, 12, tmp_path=tmp_path)
    cost = Cost(ns=18 * reports.MS, per_step_ns=3 * reports.MS)
    report = replace(report, findings=(replace(reports.build_leak(), cost=cost),))
    assert headline(report).endswith(", 18.0 ms (20%) of all steps.")


def test_where_the_host_runs_ahead_both_step_times_are_given() -> None:
    report = reports.build_gpu_report()
    breakdown = report.summary.breakdown
    assert breakdown is not None
    steps = tuple(
        replace(step, dur_ns=100 * reports.MS, device_start_ns=0, device_dur_ns=step.dur_ns)
        for step in report.summary.steps
    )
    breakdown = replace(breakdown, host_per_step_ns=100 * reports.MS)
    report = replace(report, summary=replace(report.summary, steps=steps, breakdown=breakdown))

    both = "174 ms on the GPU (171 ms to 176 ms) and 100 ms on the host, which runs ahead"
    assert step_time(report) == both

    shown = render(report, "text").decode()
    assert "Step time: 174 ms on the GPU, 100 ms on the host (mean of 6, 171 ms to 176 ms)" in shown
    page = render(report, "html").decode()
    assert "100 ms on the host" in page
    assert "Step time, device" in page


def test_incomplete_steps_are_counted() -> None:
    report = reports.build_gpu_report()
    report = replace(report, summary=replace(report.summary, n_incomplete_steps=2))
    excluded = "2 incomplete steps excluded"
    assert excluded in render(report, "text").decode()
    assert excluded in render(report, "html").decode()


def test_disturbed_steps_are_counted_with_them() -> None:
    report = reports.build_gpu_report()
    for n_incomplete, n_disturbed, excluded in (
        (0, 1, "1 disturbed step excluded"),
        (1, 2, "1 incomplete and 2 disturbed steps excluded"),
    ):
        summary = replace(
            report.summary, n_incomplete_steps=n_incomplete, n_disturbed_steps=n_disturbed
        )
        shown = replace(report, summary=summary)
        assert excluded in render(shown, "text").decode()
        assert excluded in render(shown, "html").decode()


def test_the_highest_memory_cost_follows_the_highest_cost_in_time() -> None:
    assert headline(reports.build_gpu_report()).endswith(
        "Highest memory cost: tensors are never freed at train.py:44 and 1 more line, "
        "1.50 MiB per step."
    )
    assert "Highest memory cost: tensors are never freed" in headline(reports.build_cpu_report())


def test_without_findings_it_gives_the_cause_of_idle_time() -> None:
    clean = replace(reports.build_gpu_report(), findings=(), unchecked=())
    assert headline(clean).endswith(
        "step and waits 37% for data. No check found what to change about the idle time."
    )


def test_what_most_skipped_checks_lack_is_said() -> None:
    text = headline(reports.unchecked_report())
    assert "No problems found; 13 checks skipped: there are no operators." in text


def test_checks_that_cannot_apply_to_the_program_are_not_mentioned(tmp_path: Path) -> None:
    report = replace(steps_of(12, 12, 12, tmp_path=tmp_path), findings=())
    reasons = {check.reason for check in report.unchecked}
    of_others = {needs.DEVICE_WORK.reason, needs.RANKS.reason, needs.MONITORING.reason}
    assert of_others <= reasons
    text = headline(report)
    assert "checks skipped: the shapes of operators' inputs were not recorded." in text

    checks = tuple(check for check in report.unchecked if check.reason in of_others)
    assert headline(replace(report, unchecked=checks)).endswith("No problems found.")
    job = replace(report.source, world_size=2)
    assert headline(replace(report, unchecked=checks, source=job)).endswith(
        "; 6 checks skipped: there are not several ranks."
    )


def test_without_steps_it_gives_the_time_from_first_to_last_device_work() -> None:
    text = headline(with_breakdown(reports.build_gpu_report(), n_steps=0, per_step_ns=None))
    assert text.startswith(
        "The GPU is busy 61% of the 1.04 s from first to last device work (no steps), and "
        "waits 37% for data."
    )


def test_without_steps_or_devices_it_gives_the_length_of_the_recording() -> None:
    text = headline(with_breakdown(reports.build_cpu_report(), n_steps=0, per_step_ns=None))
    assert "Operators take 67% of the recording of 36.0 ms on the CPU, which has no steps" in text


@pytest.mark.parametrize(
    ("ran", "delayed", "children", "expected"),
    [
        (
            5,
            5,
            50,
            _WAITED,
        ),
        (
            5,
            5,
            0,
            _WAITED,
        ),
        (5, 95, 50, None),
        (100, 0, 50, None),
        (5, None, 50, None),
    ],
)
def test_it_says_that_the_host_mostly_waited(
    ran: int, delayed: int | None, children: int, expected: str | None
) -> None:
    ms = 10 * reports.MS
    cpu = CpuTime(
        window_ns=100 * ms,
        thread_ns=ran * ms,
        process_ns=ran * ms,
        delayed_ns=None if delayed is None else delayed * ms,
        children_ns=children * ms,
    )
    report = reports.build_cpu_report()
    assert report.summary.breakdown is not None
    parts = tuple(part for part in report.summary.breakdown.parts if part.kind != "data")
    report = with_breakdown(report, parts=parts)

    text = headline(replace(report, source=replace(report.source, cpu=cpu)))
    assert ("waited" in text) == (expected is not None)
    assert (expected or "") in text
    assert ("child processes" in text) == (expected is not None and children > 0)

    # A core that others used is no wait of the program's.
    lines = list(
        describe_recording(replace(report, source=replace(report.source, cpu=cpu)), everything=True)
    )
    assert any("had no core for 95%" in line for line in lines) == (delayed == 95)

    of_gpu = reports.build_gpu_report()
    assert "waited" not in headline(replace(of_gpu, source=replace(of_gpu.source, cpu=cpu)))


def test_it_says_how_little_of_the_recording_the_steps_are() -> None:
    report = reports.build_cpu_report()
    longer = replace(report, summary=replace(report.summary, window_ns=3600 * reports.MS))
    assert "3.56 s of the recording (99%) are outside of the steps." in headline(longer)

    # Between steps that profkit recorded is its own work, after the last one may be a step's.
    ours = replace(
        longer, source=replace(longer.source, overhead_ratio=0.1, step_origin="profiler")
    )
    assert "outside of the steps" not in headline(ours)
    cut_off = replace(ours, summary=replace(ours.summary, n_incomplete_steps=1))
    assert "are outside of the steps." in headline(cut_off)


def test_it_says_that_later_steps_take_longer() -> None:
    report = reports.build_cpu_report()
    slowing = replace(
        reports.build_leak(),
        name="slowing-steps",
        evidence={"first_steps_ns": 20 * reports.MS, "last_steps_ns": 50 * reports.MS},
    )
    text = headline(replace(report, findings=(*report.findings, slowing)))
    assert "Steps take 2.5 times as long at the end of the run as at its beginning." in text
    assert "times as long" not in headline(report)


def test_a_gpu_whose_work_was_not_recorded_is_not_a_cpu_run() -> None:
    report = reports.build_cpu_report()
    report = replace(report, source=replace(report.source, devices=("NVIDIA A100",)))
    text = headline(report)
    assert "No device work was recorded." in text
    assert "on the CPU" not in text


def test_a_fault_of_the_recording_is_mentioned() -> None:
    fault = replace(reports.no_stacks(), severity="warning", title="Device events are lost")
    assert headline(replace(reports.build_gpu_report(), health=(fault,))).endswith(
        "Figures are less reliable: device events are lost."
    )


def test_three_sentences_at_most_are_read() -> None:
    report = reports.build_gpu_report()
    slow = {"first_steps_ns": 20 * reports.MS, "last_steps_ns": 50 * reports.MS}
    finding = replace(report.findings[0], name="slowing-steps", evidence=slow)
    report = replace(report, findings=(finding, *report.findings))
    limiter, cost, memory_cost = headline_sentences(report)
    assert limiter.startswith("The GPU is busy 61%")
    assert cost.startswith("Highest cost: ")
    assert memory_cost.startswith("Highest memory cost: ")
    trend = headline_sentences(replace(report, findings=(finding,)))[1]
    assert trend.startswith("Steps take 2.5 times as long at the end of the run")


def test_each_of_several_devices_has_a_line() -> None:
    device = DeviceSummary("cuda:0", "A", 100, 50, 50, 30, 30, 10, 5, 1, 1, 0)

    report = replace(
        reports.build_gpu_report(),
        summary=Summary(100, (device, replace(device, device="cuda:1", communication_ns=0))),
    )
    assert facts(report, everything=False) == [
        (
            "cuda:0: busy 50% of the 100 ns from its first to its last work: compute 30%, "
            "copies 5.0%, communication 30%, compute and communication overlapping 10%"
        ),
        (
            "cuda:1: busy 50% of the 100 ns from its first to its last work: compute 30%, "
            "copies 5.0%"
        ),
    ]


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (Cost(ns=174_000_000, per_step_ns=17_400_000), "17.4 ms per step (10%)"),
        (Cost(ns=104_400_000), "104 ms (10%)"),
        (Cost(bytes=1 << 20), "1.00 MiB"),
        (Cost(per_step_bytes=1 << 10, bytes=1 << 20, basis="estimate"), "about 1.00 KiB per step"),
        (Cost(), ""),
        (Cost(ns=0, per_step_ns=0), "no time in this recording"),
        (Cost(ns=0, per_step_ns=0, high_ns=0), "no time: other work takes as long"),
        (Cost(ns=0, low_ns=0, high_ns=104_400_000), "up to 104 ms (10%)"),
    ],
)
def test_a_cost_is_given_per_step_where_there_are_steps(cost: Cost, expected: str) -> None:
    report = reports.build_gpu_report()
    finding = replace(report.findings[0], cost=cost)
    report = replace(report, findings=(finding,))
    assert cost_text(report, finding) == expected


def test_a_small_cost_is_not_in_the_headline() -> None:
    report = reports.build_gpu_report()
    small = replace(report.findings[0], cost=Cost(ns=6_000_000, per_step_ns=1_000_000))
    report = replace(report, findings=(small,))
    assert "GPU is busy 61%" in headline(report)
    assert "Highest cost" not in headline(report)

    busy = with_breakdown(report, parts=(TimePart("compute", 10**9, 174_000_000, 1.0),))
    assert headline(busy).endswith(" step. No finding exceeds 3% of step time.")


def test_a_share_is_unknown_without_a_length() -> None:
    report = replace(reports.build_gpu_report(), summary=Summary(0))
    assert cost_share(report, report.findings[0]) is None


def test_operators_rank_by_what_they_launch_themselves() -> None:
    per_step, on_device, ops = busiest_ops(reports.build_gpu_report())
    assert (per_step, on_device) == (True, True)
    assert [op.name for op in ops] == ["aten::cudnn_convolution", "aten::mm"]
    per_step, on_device, ops = busiest_ops(reports.build_cpu_report())
    assert (per_step, on_device, [op.name for op in ops]) == (False, False, ["aten::addmm"])


def headline_of(b: TraceBuilder, folder: Path) -> str:
    return headline(analyze(b.write(folder / "built.json")))


def test_what_exceeds_the_findings_is_explained_first(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 7, "train"):
            b.compute("aten::mm", 8_000_000)
            b.compute("aten::relu", 2_000_000)
    assert (
        "Operators take 100% of each 10.0 ms step: 100% at train (train.py:7), mostly aten::mm "
        "(80%). No "
    ) in headline_of(b, tmp_path)


def test_the_largest_part_is_one_of_the_program(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 7, "train"):
            with b.frame("profkit/capture/run/step_detection.py", 9, "_on_module"):
                b.advance(5_000_000)
            b.compute("aten::mm", 4_000_000)
    text = headline_of(b, tmp_path)
    assert text.startswith("Operators take 100% of each 4.00 ms step: 100% at train (train.py:7)")


def test_the_finding_on_what_takes_most_follows(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 7, "train"):
            b.load(8_000_000)
            b.compute("aten::mm", 2_000_000)
    text = headline_of(b, tmp_path)
    assert text.startswith("The program waits for data for 80% of each 10.0 ms step.")
    assert "Highest cost: loop waits for the data loader" in text


def test_operators_of_cudnn_are_not_all_on_the_cpu(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    b.compute("aten::cudnn_convolution", 2_000_000)
    assert "has no steps and no device work" in headline_of(b, tmp_path)


def test_a_cold_start_happens_once_and_not_per_step(tmp_path: Path) -> None:
    b = TraceBuilder()
    for number in range(3):
        with b.step(), b.op("aten::mm"):
            ident = b.call("LaunchKernel", 90_000_000 if number == 1 else 5_000)
            b.kernel("gemm", 10_000, correlation=ident)
    assert "Cold start takes 90.0 ms (100% of all steps): launches" in headline_of(b, tmp_path)


def test_launches_that_take_ten_milliseconds_are_a_cold_start(tmp_path: Path) -> None:
    b = TraceBuilder()
    for number in range(10):
        with b.op("aten::mm"):
            ident = b.call("LaunchKernel", 90_000_000 if number < 2 else 5_000)
        b.kernel("gemm", 10_000, correlation=ident)
        b.advance(2_500_000)
    # Two launches of 90 ms, in 8 others with 9 pauses of 2.5 ms: 202.5 ms.
    assert (
        "Cold start takes 180 ms (89% of the recording): launches that first load code and "
        "libraries."
    ) in headline_of(b, tmp_path)


def test_the_report_of_a_run_states_what_recording_and_report_cost() -> None:
    cost = RunCost(recording_ns=900_000_000, report_ns=300_000_000, run_ns=12_000_000_000)

    assert cost.share == pytest.approx(0.1)
    cpu = CpuTime(window_ns=250_000_000, thread_ns=1, process_ns=1)
    report = reports.build_cpu_report()
    report = replace(report, source=replace(report.source, run_cost=cost, cpu=cpu))
    assert (
        "250 ms of the run were recorded. Recording took 900 ms of processor time and the report "
        "300 ms: 10% of the run."
    ) in list(describe_recording(report, everything=False))

    little = replace(cost, run_ns=120_000_000_000)
    report = replace(report, source=replace(report.source, run_cost=little))
    assert not [
        fact for fact in describe_recording(report, everything=False) if "of the run" in fact
    ]
    assert [
        fact
        for fact in describe_recording(report, everything=True)
        if fact.endswith(": 1.0% of the run.")
    ]


def with_one_operator(*, stacks: bool) -> TraceBuilder:
    b = TraceBuilder(stacks=stacks, device_names=())
    with b.step(), b.frame("train.py", 10, "train") if stacks else nullcontext():
        b.compute("aten::mm", 10_000)
    return b


@pytest.mark.parametrize(("stacks", "end"), [(True, "."), (False, ", which needs Python stacks.")])
def test_a_report_without_modules_says_why(stacks: bool, end: str, tmp_path: Path) -> None:  # noqa: FBT001
    report = analyze(with_one_operator(stacks=stacks).write(tmp_path / "t.json"))
    why = f"No times of modules: no call of an `nn.Module` was recorded{end}"
    assert why in list(describe_recording(report, everything=True))
    assert why not in list(describe_recording(report, everything=False))


def test_a_report_with_modules_or_without_operators_says_nothing_about_them(tmp_path: Path) -> None:
    b = with_one_operator(stacks=True)
    with b.step(), b.module("Linear"):
        b.compute("aten::mm", 10_000)
    reports_of = (analyze(b.write(tmp_path / "t.json")), reports.build_snapshot_report())
    assert reports_of[0].summary.modules
    for report in reports_of:
        assert not any("nn.Module" in fact for fact in describe_recording(report, everything=True))


def test_a_name_with_less_than_half_of_the_largest_part_is_its_longest(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 7, "train"):
            b.compute("aten::mm", 4_000_000)
            b.compute("aten::relu", 3_000_000)
            b.compute("aten::add", 3_000_000)
    assert "train (train.py:7), the longest aten::mm (40%)." in headline_of(b, tmp_path)


def test_errors_come_first_at_any_cost() -> None:
    first = reports.build_gpu_report().findings[0]
    note = replace(first, severity="note", cost=Cost(900 * reports.MS))
    error, warning = (
        replace(first, severity="error", cost=Cost(0)),
        replace(first, severity="warning"),
    )
    assert ranking((error, warning)) == "errors first, then the highest cost"
    assert ranking((error, warning, note)) == "errors first, then the highest cost, notes last"
    assert ranking((replace(error, cost=note.cost), warning)) == "highest cost first"


@pytest.mark.parametrize(
    ("changes", "is_named"),
    [({}, True), ({"confidence": "low"}, False), ({"basis": "upper-bound"}, False)],
    ids=["measured", "a guess", "a bound"],
)
def test_no_less_than_the_highest_known_cost_is_named(
    changes: dict[str, str], *, is_named: bool
) -> None:
    report = reports.build_gpu_report()
    first, second = report.findings
    cost = Cost(900 * reports.MS, basis=changes.get("basis", "estimate"))  # type: ignore[arg-type]
    note = replace(first, severity="note", title="Products in float64", cost=cost)
    note = replace(note, confidence=changes.get("confidence", "medium"))  # type: ignore[arg-type]
    text = headline(replace(report, findings=(first, second, note)))
    assert ("Highest cost: products in float64 at train.py:31, about 900 ms" in text) == is_named
    assert ("Highest cost (excluding notes): the loader starves the GPU" in text) != is_named


def test_without_steps_neither_times_nor_costs_are_per_step(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(60):
        b.launch("aten::add", kernel="add", host_ns=100_000, device_ns=5_000)
    b.synchronize()
    report = analyze(b.write(tmp_path / "t.json"), strict=True)
    text = headline(report)
    assert text.startswith("The GPU is idle 95% of the ")
    assert "from first to last device work (no steps), because the CPU launches its" in text
    assert "Highest cost: GPU idle waiting for kernel launches" in text
    assert "per step" not in text


def test_a_note_with_a_higher_cost_makes_neither_the_headline_nor_the_order_false() -> None:
    report = reports.build_gpu_report()
    first, second = report.findings
    note = replace(first, severity="note", confidence="low", cost=Cost(900 * reports.MS))
    assert ranking((first, second)) == "highest cost first"
    assert ranking((first, second, note)) == "highest cost first, notes last"
    assert ranking((first, replace(note, cost=Cost(0)))) == "highest cost first"
    assert ranking((note,)) == "highest cost first"

    text = headline(replace(report, findings=(first, second, note)))
    assert "Highest cost (excluding notes): the loader starves the GPU" in text
    assert "Highest memory cost: tensors" in text
    assert "Highest cost: the loader" in headline(replace(report, findings=(first, second)))
    large = replace(second, severity="note", cost=Cost(bytes=1 << 40))
    text = headline(replace(report, findings=(first, second, large)))
    assert "Highest memory cost (excluding notes): tensors" in text


def test_the_highest_memory_cost_has_the_most_bytes() -> None:
    report = reports.build_gpu_report()
    first, leak = report.findings
    small = replace(first, title="Small buffers", cost=Cost(2 * reports.MS, 1 << 10))
    large = replace(leak, title="Large buffers", cost=Cost(bytes=1 << 30))
    text = headline(replace(report, findings=(first, small, large)))
    assert "Highest memory cost: large buffers" in text


def test_the_part_that_includes_fills_is_not_called_copies_alone(tmp_path: Path) -> None:
    # A comparison and the table of devices have the time of copies under that name.
    b = TraceBuilder()
    with b.step():
        b.fill(1 << 20, 5_000_000)
    report = analyze(b.write(tmp_path / "built.json"))
    shown = render(report, "text", verbose=True).decode()
    assert "  copies and fills  5.00 ms" in shown


_IDLE = Candidate(Cause.IDLE, 0.4, "idle")
_BUSY = Candidate(Cause.DEVICE, 0.6, "busy")
_LOST = Candidate(Cause.UNRECORDED, 0.7, "lost")


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([], []),
        ([_IDLE, _BUSY], [_BUSY]),
        # What can be changed follows what was not recorded.
        ([_IDLE, _LOST, _BUSY], [_LOST, _BUSY]),
        # A sampled function is known with an error; operators and Python name no cause.
        ([Candidate(Cause.FUNCTION, 0.5, "f"), Candidate(Cause.OPERATORS, 0.5, "o")], ["f"]),
        ([Candidate(Cause.DATA, 0.49, "d"), Candidate(Cause.OPERATORS, 0.51, "o")], ["d"]),
        ([Candidate(Cause.DATA, 0.4, "d"), Candidate(Cause.OPERATORS, 0.6, "o")], ["o"]),
        ([_IDLE, Candidate(Cause.COLD_START, 0.5, "c")], ["c", _IDLE]),
        ([Candidate(Cause.IDLE, 0.9, "i"), Candidate(Cause.COLD_START, 0.5, "c")], ["c", "i"]),
        ([Candidate(Cause.IDLE, 0.9, "i"), Candidate(Cause.COLD_START, 0.4, "c")], ["i"]),
        ([Candidate(Cause.DEVICE, 0.9, "b"), Candidate(Cause.COLD_START, 0.6, "c")], ["c", "b"]),
        ([Candidate(Cause.WAITING, 0.9, "w"), Candidate(Cause.OPERATORS, 0.95, "o")], ["w"]),
    ],
)
def test_the_cause_with_the_largest_share_is_chosen(
    candidates: list[Candidate], chosen: list[Candidate | str]
) -> None:
    sentences = [
        candidate.sentence if isinstance(candidate, Candidate) else candidate
        for candidate in chosen
    ]
    assert [candidate.sentence for candidate in choose(candidates)] == sentences


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"compute": 0.9, "idle-host": 0.1},
            "The GPU is busy 90% of each 174 ms step and waits 10% for launches.",
        ),
        ({"compute": 0.95, "idle-host": 0.05}, "The GPU is busy 95% of each 174 ms step."),
        (
            {"compute": 0.2, "idle-host": 0.8},
            "The GPU is idle 80% of each 174 ms step, because the CPU launches its ",
        ),
        (
            {"compute": 0.2, "idle-data": 0.5, "idle-sync": 0.3},
            "The GPU is idle 80% of each 174 ms step, 50% because it waits for data.",
        ),
        (
            {"compute": 0.2, "idle-allocator": 0.8},
            "The GPU is idle 80% of each 174 ms step, because the host waits for memory alloc",
        ),
        (
            {"compute": 0.3, "idle-unknown": 0.7},
            "The GPU is idle 70% of each 174 ms step, for a cause that the recording does not show",
        ),
        (
            {"compute": 0.2, "communication": 0.5, "idle-host": 0.3},
            (
                "The GPU is busy 70% of each 174 ms step, mainly with collectives that nothing "
                "overlaps (50%), and waits 30% for launches."
            ),
        ),
        (
            {"copy": 0.7, "compute": 0.2},
            "The GPU is busy 90% of each 174 ms step, mainly with copies",
        ),
    ],
)
def test_the_first_sentence_names_the_largest_known_part(
    parts: dict[str, float], sentence: str
) -> None:
    report = reports.build_gpu_report()
    assert report.summary.breakdown is not None
    shares = [
        TimePart(kind, round(share * 1e9), round(share * 174e6), share)
        for kind, share in parts.items()
    ]
    report = with_breakdown(report, parts=tuple(shares))
    assert headline_sentences(report)[0].startswith(sentence)


def test_idle_time_for_launches_includes_their_way_to_the_device(tmp_path: Path) -> None:
    b = TraceBuilder(latency_ns=40_000)
    for _ in range(3):
        with b.step():
            for _ in range(20):
                b.launch("aten::mm", kernel="gemm", host_ns=60_000, device_ns=10_000)
    text = headline(analyze(b.write(tmp_path / "t.json")))
    assert "step, because the CPU launches its 20 kernels too slowly." in text


def test_the_time_of_python_includes_that_within_the_optimizer(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.advance(6_000_000)
            with b.annotation("Optimizer.step#Adam.step"):
                b.advance(3_000_000)
                b.compute("aten::addcdiv_", 1_000_000)
    text = headline(analyze(b.write(tmp_path / "t.json")))
    assert text.startswith(
        "Python outside of operators, the optimizer's included, takes 90% of each 10.0 ms step on "
        "the CPU: 90% at train_step (train.py:10). "
    )


@pytest.mark.parametrize(
    ("second_line_ns", "text"),
    [
        (
            20_000_000,
            ": 100% in main (train.py:2), most at line 5 (60%).",
        ),
        (10_000_000, ": 75% at train.py:5, aten::mm."),
    ],
    ids=["several lines", "one line"],
)
def test_a_function_is_named_where_no_line_of_it_takes_most(
    tmp_path: Path, second_line_ns: int, text: str
) -> None:
    lines = replace(op_lines(aten__mm=5, aten__add=6), first_lines=[2, 2])
    info = CaptureInfo(version="1", name="train", steps="optimizer", lines=lines)
    b = TraceBuilder(device_names=(), capture=info)
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", 30_000_000)
            b.compute("aten::add", second_line_ns)
    (first, *_) = headline_sentences(analyze(b.write(tmp_path / "trace.json")))
    assert first.endswith(text)


def test_a_function_takes_the_time_of_its_backward_pass_too(tmp_path: Path) -> None:
    lines = replace(op_lines(aten__mm=5, aten__add=6, MmBackward0=5), first_lines=[2, 2, 2])
    info = CaptureInfo(version="1", name="train", steps="optimizer", lines=lines)
    b = TraceBuilder(device_names=(), capture=info)
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", 10_000_000)
            b.compute("aten::add", 20_000_000)
            b.compute("autograd::engine::evaluate_function: MmBackward0", 1_000_000)
            b.compute("MmBackward0", 19_000_000)
    (first, *_) = headline_sentences(analyze(b.write(tmp_path / "trace.json")))
    assert "in main (train.py:2) and its backward pass, most at line" in first


@pytest.mark.parametrize(
    ("n_operators", "operator_ns", "text"),
    [
        (1_536, 1_500, " in 1,536 operators of 1.50 µs"),
        (1_536, 40_000, ""),
        (60, 1_500, ""),
    ],
    ids=["many short ones", "long ones", "few"],
)
def test_a_loop_of_very_many_short_operators_has_their_number(
    tmp_path: Path, n_operators: int, operator_ns: int, text: str
) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 16, "alpha_bar"):
            for _ in range(n_operators):
                b.compute("aten::prod", operator_ns)
    (first, *_) = headline_sentences(analyze(b.write(tmp_path / "trace.json")))
    assert first.startswith(
        f"Operators take 100% of each {format_ns(n_operators * operator_ns)} step"
    )
    assert f"(train.py:16){text}, aten::prod" in first


@pytest.mark.parametrize(("operator_ns", "is_told"), [(4_000, True), (15_000, False)])
def test_a_loop_of_operators_that_compute_hardly_anything_has_a_cure(
    tmp_path: Path, operator_ns: int, *, is_told: bool
) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 16, "alpha_bar"):
            for _ in range(1_000):
                b.compute("aten::prod", operator_ns)
    text = headline(analyze(b.write(tmp_path / "trace.json")))
    assert ("fewer, larger ones would take less." in text) == is_told


def test_the_operators_of_a_recurrent_module_are_not_the_programs_to_change(
    tmp_path: Path,
) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 16, "forward"), b.op("aten::gru"):
            for _ in range(1_000):
                b.compute("aten::addmm", 4_000)
    text = headline(analyze(b.write(tmp_path / "trace.json")))
    assert "fewer, larger operators" not in text
    assert text.endswith(
        "`nn.GRU` runs operators for each element of a sequence, and each takes longer to call "
        "than to compute: larger batches or shorter sequences would take less per sample."
    )


@pytest.mark.parametrize(
    ("operator_ns", "python_ns", "is_told"),
    [
        (5_000, 8_000, True),
        (25_000, 20_000, True),
        (25_000, 12_000, False),  # they may compute in most of the time
        (40_000, 50_000, False),
        (5_000, 200_000, False),  # whatever it is, it is not a call
    ],
)
def test_steps_that_consist_of_calls_want_larger_batches(
    tmp_path: Path, operator_ns: int, python_ns: int, *, is_told: bool
) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            for _ in range(20):
                b.compute("aten::mm", operator_ns)
                b.advance(python_ns)
    text = headline(analyze(b.write(tmp_path / "trace.json")))
    assert ("Its operators take longer to call than to compute" in text) == is_told
    assert "No check explains" not in text or not is_told


def test_other_programs_do_not_make_operators_long(tmp_path: Path) -> None:
    capture = CaptureInfo(
        version="0", name="train", steps="user", cpu=CpuTime(100, 25, 25, delayed_ns=75)
    )
    b = TraceBuilder(device_names=(), stacks=True, capture=capture)
    for _ in range(2):
        with b.step(), b.frame("train.py", 16, "alpha_bar"):
            for _ in range(1_000):
                b.compute("aten::prod", 15_000)
    text = headline(analyze(b.write(tmp_path / "trace.json")))
    assert "fewer, larger ones would take less." in text


def test_the_name_of_an_operator_is_not_a_place(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(100):
                b.launch("aten::add_", kernel="add", host_ns=30_000, device_ns=2_000)
            b.synchronize()
    report = analyze(b.write(tmp_path / "trace.json"))
    assert report.findings[0].locations[0].op == "aten::add_"
    assert "at aten::add_" not in headline(report)
    assert "Highest cost: GPU idle waiting for kernel launches, " in headline(report)


def test_the_optimizer_is_named_where_it_takes_more_than_other_parts(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 3 * reports.MS)
            with b.annotation("Optimizer.step#Adam.step"):
                b.compute("aten::add_", 4 * reports.MS)
                b.advance(2 * reports.MS)
            b.advance(1 * reports.MS)
    text = headline(analyze(b.write(tmp_path / "t.json"), strict=True))
    assert text.startswith(
        "The optimizer takes 60% of each 10.0 ms step on the CPU, other operators 30%."
    )


def test_an_optimizers_python_is_no_part_of_the_operators(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 5 * reports.MS)
            with b.annotation("Optimizer.step#Adam.step"):
                b.compute("aten::add_", 1 * reports.MS)
                b.advance(3 * reports.MS)
            b.advance(1 * reports.MS)
    text = headline(analyze(b.write(tmp_path / "t.json"), strict=True))
    # Of 10 ms, 6 are operators.
    assert text.startswith("Operators take 60% of each 10.0 ms step on the CPU")


def test_python_with_the_optimizers_says_so(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 2 * reports.MS)
            with b.annotation("Optimizer.step#Adam.step"):
                b.advance(2 * reports.MS)
            b.advance(6 * reports.MS)
    text = headline(analyze(b.write(tmp_path / "t.json"), strict=True))
    assert text.startswith(
        "Python outside of operators, the optimizer's included, takes 80% of each 10.0 ms step on "
        "the CPU"
    )


def test_the_line_of_later_steps_is_not_that_of_the_first_one(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for number in range(6):
        with b.step():
            if not number:
                with b.frame("train.py", 3, "warm"):
                    b.compute("aten::zeros", 400 * reports.MS)
            with b.frame("train.py", 7, "train"):
                b.compute("aten::mm", 10 * reports.MS)
    text = headline(analyze(b.write(tmp_path / "t.json"), strict=True))
    assert "step on the CPU: 100% at train (train.py:7), aten::mm." in text


@pytest.mark.parametrize(("name", "is_import"), [("_find_and_load", True), ("prepare", False)])
def test_imports_in_the_first_of_two_steps_are_not_part_of_the_mean(
    tmp_path: Path, name: str, *, is_import: bool
) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for number in range(2):
        with b.step(), b.frame("train.py", 7, "train"):
            if not number:
                file = "<frozen importlib._bootstrap>" if is_import else "prepare.py"
                with b.frame(file, 1165, name):
                    b.advance(300 * reports.MS)
            b.compute("aten::mm", 10 * reports.MS)
    text = headline(analyze(b.write(tmp_path / "t.json"), strict=True))
    first = (
        "The first step takes 310 ms, 300 ms of it for imports. Operators take 100% of each later "
    )
    assert text.startswith(first) == is_import
    assert ("later" in text) == is_import


def test_one_long_step_comes_with_its_line(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for number in range(4):
        with b.step():
            with b.frame("train.py", 7, "train"):
                b.compute("aten::mm", 10 * reports.MS)
            if number == 2:
                with b.frame("train.py", 9, "evaluate"):
                    b.compute("aten::sort", 90 * reports.MS)
    text = headline(analyze(b.write(tmp_path / "t.json"), strict=True))
    assert text.startswith(
        "One of 4 steps takes 100 ms, the others 10.0 ms: 90% at evaluate (train.py:9), aten::sort."
    )


def test_kernels_of_no_known_kind_are_named(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for name, ms in (("backward_compute", 6), ("forward_compute", 4)):
                with b.op("aten::mine"):
                    ident = b.call("LaunchKernel", 4_000)
                b.kernel(name, ms * reports.MS, correlation=ident)
            b.call("DeviceSynchronize", 10 * reports.MS)
    assert (
        ", mostly with `backward_compute` (60% of kernel time) and `forward_compute` (40%)"
    ) in headline(analyze(b.write(tmp_path / "t.json"), strict=True)).split(". ")[0]
