"""Outcomes: exact counts, times with their noise, baselines of the same device, and causes."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import profkit
from profkit.budgets.baseline import baseline_text, build_baseline
from profkit.errors import DamagedFileError
from profkit.model.capture_info import CpuTime
from profkit.model.check import BudgetResult
from profkit.model.memory_summary import StepMemory
from profkit.model.report import Report
from profkit.model.step_summary import StepSummary
from profkit.testing import TraceBuilder
from tests.renderers import reports

MS = 1_000_000


def timed(*times_ms: float, device: str = "NVIDIA H100") -> Report:
    """Return a report with steps of some lengths."""
    steps = tuple(
        StepSummary(f"step {n}", 0, round(ms * MS), 5 * MS, 5 * MS, 0, 0, n_kernels=40, n_syncs=1)
        for n, ms in enumerate(times_ms)
    )
    report = reports.build_gpu_report()
    source = replace(report.source, devices=(device,))
    return replace(report, source=source, summary=replace(report.summary, steps=steps))


def baseline_file(folder: Path, *reports_: Report) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "baseline.json"
    path.write_bytes(baseline_text(build_baseline(reports_)))
    return path


def result(
    every: Report | Sequence[Report], budgets: dict[str, object], baseline: Path | None = None
) -> BudgetResult:
    (only,) = profkit.check(every, budgets, baseline=baseline).results
    return only


def test_a_count_over_its_limit_fails_with_the_line_that_causes_it(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for n in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5 * MS)
            for _ in range(1 + n // 3):
                b.item()
    syncs = result(profkit.analyze(b.write(tmp_path / "t.json")), {"syncs": 1})
    assert (syncs.value, syncs.limit, syncs.outcome) == (2, 1, "over")  # the last step has two
    assert [cause.name for cause in syncs.causes] == ["item-sync"]
    assert syncs.causes[0].locations[0].place == "train_step (train.py:10)"


def test_kernels_are_counted_in_the_step_that_launches_them(tmp_path: Path) -> None:
    b = TraceBuilder()
    for n in range(3):
        with b.step():
            for _ in range(2 + n):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=MS)
    report = profkit.analyze(b.write(tmp_path / "t.json"))
    assert [step.n_kernels for step in report.summary.steps] == [2, 3, 4]
    assert result(report, {"kernels": 4}).outcome == "ok"
    assert result(report, {"kernels": 3}).outcome == "over"


def test_a_time_is_its_median_with_three_standard_errors() -> None:
    times = [10.0, 10.2, 9.9, 10.1, 14.0, 10.0, 9.8, 10.3]
    step_time = result(timed(*times), {"step_ms": 10.0})
    middle = statistics.median(times)
    deviation = statistics.median(abs(time - middle) for time in times)
    sigma = 1.4826 * 1.129 * deviation  # of eight values it is too small by that
    error = 3 * (3.141592653589793 / 2) ** 0.5 * sigma / len(times) ** 0.5
    assert step_time.value == round(middle * MS)
    assert step_time.error == pytest.approx(error * MS, rel=1e-4)
    assert (step_time.n, step_time.outcome) == (8, "noisy")
    assert result(timed(*times), {"step_ms": 9.0}).outcome == "over"
    assert result(timed(*times), {"step_ms": 10.1}).outcome == "ok"


def test_two_steps_do_not_show_how_much_a_time_varies() -> None:
    step_time = result(timed(99.0, 99.0), {"step_ms": 1})
    assert (step_time.error, step_time.n, step_time.outcome) == (None, 2, "noisy")
    assert result(timed(99.0, 99.0, 99.0), {"step_ms": 1}).outcome == "over"


def test_three_runs_are_three_measurements() -> None:
    runs = [timed(*[10 + run] * 50) for run in (0.0, 0.5, 0.2)]
    step_time = result(runs, {"step_ms": 10.1})
    assert (step_time.value, step_time.n, step_time.outcome) == (round(10.2 * MS), 3, "noisy")


def test_a_time_relative_to_a_baseline_has_the_noise_of_both(tmp_path: Path) -> None:
    kept = baseline_file(tmp_path, timed(9.9, 10.0, 10.1, 10.0))
    exact = baseline_file(tmp_path / "exact", timed(10.0, 10.0, 10.0, 10.0))
    now = timed(10.6, 10.6, 10.6, 10.6)
    assert result(now, {"step_ms": "+10%"}, kept).outcome == "ok"
    assert result(now, {"step_ms": "+5%"}, exact).outcome == "over"
    assert result(now, {"step_ms": "+5%"}, kept).outcome == "noisy"


def test_times_of_another_device_are_not_compared_but_counts_are(tmp_path: Path) -> None:
    kept = baseline_file(tmp_path, timed(10.0, device="NVIDIA A100"))
    slow = result(timed(99.0), {"step_ms": "+5%"}, kept)
    assert (slow.outcome, slow.has_failed) == ("other-device", False)
    assert "NVIDIA A100" in slow.reason
    fast = result(timed(1.0), {"step_ms": "+5%"}, kept)
    assert fast.outcome == "other-device"
    assert result(timed(99.0), {"kernels": "+0"}, kept).outcome == "ok"
    assert result(timed(99.0, 99.0, 99.0), {"step_ms": 5}, kept).outcome == "over"


def test_what_was_not_recorded_fails_and_says_why(tmp_path: Path) -> None:
    growth = result(timed(1.0), {"growth": 0})
    assert (growth.outcome, growth.value, growth.has_failed) == ("unknown", None, True)
    assert "Growth was not evaluated" in growth.reason
    relative = result(timed(1.0), {"kernels": "+0"})
    assert (relative.outcome, relative.limit) == ("unknown", None)
    assert "--baseline" in relative.reason
    no_steps = replace(timed(), summary=replace(timed().summary, steps=()))
    assert result(no_steps, {"kernels": 1}).reason == "The recording has no steps."
    older = baseline_file(tmp_path, no_steps)
    assert "--update-baseline" in result(timed(1.0), {"kernels": "+0"}, older).reason


def test_the_peak_names_the_lines_with_most_of_it(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, memory=True, device_names=())
    for _ in range(2):
        with b.step():
            kept = []
            for line, n_bytes in ((10, 600), (20, 300), (30, 4)):
                with b.frame("train.py", line, f"line_{line}"), b.op("aten::empty"):
                    b.advance(1_000)
                    kept.append(b.alloc(n_bytes, device=None))
                    b.advance(1_000)
            for address in kept:
                b.free(address)
    report = profkit.analyze(b.write(tmp_path / "t.json"))

    peak = result(report, {"peak": 900})
    assert (peak.value, peak.outcome) == (904, "over")
    assert [(site.location.place, site.bytes, site.n) for site in peak.sites] == [
        ("line_10 (train.py:10)", 600, 1),
        ("line_20 (train.py:20)", 300, 1),  # not the third
    ]
    assert result(report, {"peak": 904}).sites == ()

    check = profkit.check(report, {"peak": 900})
    texts = {name: profkit.render(check, name).decode() for name in ("text", "junit", "github")}
    for text in texts.values():
        assert "train.py:10: 600 B in 1 block of the 904 B." in text.replace("%3A", ":")
    assert "file=train.py,line=10" in texts["github"]


def test_the_peak_of_earlier_recordings_of_the_process_is_none_of_this_one(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, memory=True, device_names=())
    b._allocated[None] = 1 << 30  # torch counts on
    with b.step(), b.op("aten::empty"):
        b.free(b.alloc(500, device=None))
    report = profkit.analyze(b.write(tmp_path / "t.json"))
    memory = report.summary.memory
    assert memory is not None
    assert [(part.bytes, part.window_bytes) for part in memory.peak] == [((1 << 30) + 500, 500)]
    assert result(report, {"peak": 500}).outcome == "ok"


def test_monitored_memory_and_a_trace_add_up_to_the_peak(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True, device_names=())
    with b.step(), b.op("aten::empty"):
        b.alloc(30, device=None)  # stays, so that it is in the samples
        b.free(b.alloc(500, device=None))
    report = profkit.analyze(b.write(tmp_path / "t.json"))
    memory = report.summary.memory
    assert memory is not None
    step = StepMemory(1, 1 << 30, 1030, None, None, None)
    report = replace(report, summary=replace(report.summary, memory=replace(memory, steps=(step,))))
    assert result(report, {"peak": 1530}).value == 1000 + 30 + 500


def test_one_of_several_recordings_may_have_the_figure() -> None:
    growing = reports.watched_report()
    both = [timed(10.0), growing]
    n_bytes = result(both, {"growth": 0})
    assert n_bytes.outcome == "over"
    assert n_bytes.value == sum(cause.cost.per_step_bytes or 0 for cause in n_bytes.causes)
    assert result(both, {"kernels": 40}).outcome == "ok"


def test_findings_by_severity_and_rule_are_compared_with_the_baseline(tmp_path: Path) -> None:
    report = reports.build_gpu_report()
    n = sum(finding.severity in {"warning", "error"} for finding in report.findings)
    assert n
    over = result(report, {"findings": "warning"})
    assert (over.value, over.outcome) == (n, "over")
    assert {cause.severity for cause in over.causes} <= {"warning", "error"}
    kept = baseline_file(tmp_path, report)
    assert result(report, {"findings": {"warning": "+0"}}, kept).outcome == "ok"
    rule = report.findings[0].name
    fewer = replace(report, findings=report.findings[1:])
    kept = baseline_file(tmp_path, fewer)
    more = result(report, {"findings": {rule: "+0"}}, kept)
    assert (more.baseline, more.value, more.outcome) == (0, 1, "over")


def test_a_saved_report_is_a_baseline_too(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(profkit.render(timed(*[10.0] * 4), "json"))
    assert result(timed(*[11.0] * 4), {"step_ms": "+5%"}, path).outcome == "over"


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "profkit.baseline/1"}', "[1]", "\x80"])
def test_what_is_not_a_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DamagedFileError, match="baseline"):
        profkit.check(timed(1.0), {"syncs": 0}, baseline=path)


def test_a_baseline_of_another_layout_is_refused(tmp_path: Path) -> None:
    path = baseline_file(tmp_path, timed(1.0))
    path.write_text(path.read_text().replace("profkit.baseline/1", "profkit.baseline/9"))
    with pytest.raises(DamagedFileError, match=r"layout profkit\.baseline/9"):
        profkit.check(timed(1.0), {"syncs": 0}, baseline=path)


def test_few_steps_vary_by_more_than_their_median_deviation() -> None:
    of_three = result(timed(10.0, 10.1, 10.3), {"step_ms": 9.8})
    of_ten = result(timed(*[10.0] * 3, *[10.1] * 3, *[10.2] * 4), {"step_ms": 9.8})
    assert (of_three.value, of_three.outcome) == (10.1 * MS, "noisy")
    assert of_ten.outcome == "over"


def starved(report: Report, *, delayed_share: float, threads: float = 1.0) -> Report:
    """Return a recording whose thread had no core for a part of the time."""
    ran = 1 - delayed_share
    cpu = CpuTime(1000, round(1000 * ran), round(1000 * ran * threads), round(1000 * delayed_share))
    return replace(report, source=replace(report.source, cpu=cpu))


def test_a_step_time_is_not_over_its_limit_because_other_programs_had_the_cores() -> None:
    busy = starved(timed(20.0, 20.1, 19.9), delayed_share=0.75)
    step_time = result(busy, {"step_ms": 10.0})
    assert (step_time.value, step_time.outcome) == (20 * MS, "noisy")
    assert "other programs" in step_time.reason
    assert result(busy, {"step_ms": 4.0}).outcome == "over"  # they explain no more than 15 ms


def test_a_step_time_is_over_its_limit_if_the_programs_own_threads_had_the_cores() -> None:
    own_load = starved(timed(20.0, 20.1, 19.9), delayed_share=0.75, threads=4.0)
    assert result(own_load, {"step_ms": 10.0}).outcome == "over"
    ranks = starved(timed(20.0, 20.1, 19.9), delayed_share=0.75)
    ranks = replace(ranks, source=replace(ranks.source, world_size=4))
    assert result(ranks, {"step_ms": 10.0}).outcome == "over"
