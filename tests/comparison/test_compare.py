"""Findings, kernels and figures that differ between two reports, and what is not compared."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest

import profkit
from profkit.comparison.messages import tone
from profkit.errors import UsageError
from profkit.model.difference import Change, ChangeKind, Difference, Figure
from profkit.model.finding import Cost, Finding, Unchecked
from profkit.model.live_memory import LiveMemory, MemorySample
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.model.work_summary import KernelSummary, OpSummary
from profkit.readers.live_memory import SUFFIX, encode_live
from profkit.testing import TraceBuilder
from tests.index.snapshots import write
from tests.renderers import reports


def training(*, n_steps: int = 4, wait_ns: int = 0, kernel_ns: int = 200_000) -> TraceBuilder:
    """Steps of one kernel, which wait for their data first."""
    b = TraceBuilder(stacks=True)
    for _ in range(n_steps):
        with b.step(), b.frame("train.py", 10, "train_step"):
            if wait_ns:
                b.load(wait_ns)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=kernel_ns)
            b.launch("aten::add", kernel="add", host_ns=10_000, device_ns=50_000)
            b.synchronize()
    return b


def compared(folder: Path, before: TraceBuilder, after: TraceBuilder) -> Difference:
    return profkit.compare(before.write(folder / "before.json"), after.write(folder / "after.json"))


def brief(difference: Difference, kind: ChangeKind) -> list[tuple[str, str, int]]:
    return [(change.status, change.name, change.delta) for change in difference.of_kind(kind)]


def figure(difference: Difference, name: str) -> tuple[int | None, int | None]:
    (figure,) = [change for change in difference.figures if change.name == name]
    return figure.before, figure.after


def with_findings(*findings: Finding) -> Report:
    return replace(reports.build_gpu_report(), findings=findings)


def changes(before: Report, after: Report) -> tuple[Change, ...]:
    return profkit.compare(before, after).of_kind("finding")


def leak(line: int = 41, file: str = "/home/me/train.py", n_bytes: int = 1000) -> Finding:
    return Finding(
        rule="MEM001",
        name="unfreed-tensors",
        severity="warning",
        confidence="high",
        title="",
        message="",
        fix="",
        locations=(Location(file=file, line=line, function="train"),),
        n=3,
        cost=Cost(bytes=3 * n_bytes, per_step_bytes=n_bytes),
    )


def test_a_trace_compared_with_itself_has_not_changed(tmp_path: Path) -> None:
    path = training().write(tmp_path / "a.json")
    difference = profkit.compare(path, path)
    assert difference.changes == ()
    assert difference.not_compared == ()
    assert all(figure.delta == 0 for figure in difference.figures)


def test_steps_are_compared_whatever_their_number(tmp_path: Path) -> None:
    difference = compared(tmp_path, training(n_steps=3), training(n_steps=9))
    assert difference.changes == ()
    before, after = figure(difference, "step_ns")
    assert before == after
    assert figure(difference, "n_kernels_per_step") == (2, 2)


def test_a_kernel_that_takes_longer_is_worse_by_its_time_per_step(tmp_path: Path) -> None:
    difference = compared(tmp_path, training(n_steps=2), training(kernel_ns=700_000))
    assert brief(difference, "kernel") == [("worse", "gemm", 500_000)]
    before, after = figure(difference, "step_ns")
    assert before is not None
    assert after == before + 500_000
    before, after = figure(difference, "busy_ns_per_step")
    assert (before, after) == (250_000, 750_000)


def test_a_kernel_that_is_gone_is_fixed(tmp_path: Path) -> None:
    fused = TraceBuilder(stacks=True)
    for _ in range(4):
        with fused.step():
            fused.launch("aten::mm", kernel="gemm_add", host_ns=10_000, device_ns=200_000)
            fused.synchronize()
    kernel_changes = brief(compared(tmp_path, training(), fused), "kernel")
    assert kernel_changes == [
        ("fixed", "gemm", -200_000),
        ("new", "gemm_add", 200_000),
        ("fixed", "add", -50_000),
    ]


def test_a_new_finding_has_its_line_and_cost(tmp_path: Path) -> None:
    difference = compared(tmp_path, training(), training(wait_ns=5_000_000))
    (starved,) = [change for change in difference.of_kind("finding") if "DAT001" in change.name]
    assert (starved.status, starved.unit, starved.before) == ("new", "ns", 0)
    assert starved.severity == "warning"
    assert starved.location is not None
    assert (starved.location.file, starved.location.line) == ("train.py", 10)
    assert starved.after == pytest.approx(5_000_000, rel=0.1)
    back = compared(tmp_path, training(wait_ns=5_000_000), training())
    (fixed,) = [change for change in back.of_kind("finding") if "DAT001" in change.name]
    assert (fixed.status, fixed.delta) == ("fixed", -starved.delta)


def test_a_finding_that_costs_about_as_much_has_not_changed() -> None:
    assert changes(with_findings(leak()), with_findings(leak(n_bytes=1050))) == ()


def test_a_finding_that_costs_more_is_worse_and_one_that_costs_less_is_better() -> None:
    small, large = with_findings(leak()), with_findings(leak(n_bytes=1500))
    (worse,) = changes(small, large)
    assert (worse.status, worse.unit, worse.per_step, worse.delta) == ("worse", "bytes", True, 500)
    (better,) = changes(large, small)
    assert (better.status, better.delta) == ("better", -500)


def test_a_finding_whose_line_moved_is_the_same_finding() -> None:
    (worse,) = changes(with_findings(leak(line=41)), with_findings(leak(line=47, n_bytes=9000)))
    assert (worse.status, worse.before_line) == ("worse", 41)
    assert changes(with_findings(leak(line=41)), with_findings(leak(line=47))) == ()


def test_a_finding_of_the_same_program_in_another_folder_is_the_same() -> None:
    assert changes(with_findings(leak()), with_findings(leak(file="/srv/job/train.py"))) == ()


def test_of_two_findings_in_one_function_the_right_one_is_fixed() -> None:
    both = with_findings(leak(line=10), leak(line=40))
    (fixed,) = changes(both, with_findings(leak(line=42)))
    assert fixed.status == "fixed"
    assert fixed.location is not None
    assert fixed.location.line == 10


def test_a_fix_is_compared_with_its_prediction(tmp_path: Path) -> None:
    waiting = training(wait_ns=1_000_000).write(tmp_path / "before.json")
    before = profkit.analyze(waiting)
    difference = profkit.compare(before, profkit.analyze(training().write(tmp_path / "after.json")))
    gone = [finding for finding in before.findings if finding.rule.startswith("DAT")]
    assert gone

    fixes = difference.fixes
    assert fixes is not None
    assert fixes.saved_ns == pytest.approx(1_000_000, rel=0.01)

    predicted = sum(finding.cost.per_step_ns or 0 for finding in gone)
    assert fixes.low_ns <= predicted <= fixes.high_ns
    assert fixes.low_ns == pytest.approx(1_000_000, rel=0.2)

    text = " ".join(profkit.render(difference, "text").decode().split())
    assert re.search(r"The fix was predicted to save [\d.]+ [mµ]s per step\.", text)
    assert profkit.compare(before, before).fixes is None

    sentences = {
        -5: "; the step time did not fall.",
        fixes.low_ns // 2: "; the step time fell by ",
        fixes.high_ns + 19_000_000: "; the other 19.0 ms have another cause.",
    }
    for saved_ns, sentence in sentences.items():
        changed = replace(difference, fixes=replace(fixes, saved_ns=saved_ns))
        assert sentence in " ".join(profkit.render(changed, "text").decode().split())


def test_fixes_on_another_device_or_of_unknown_cost_are_not_compared() -> None:
    before = with_findings(leak())
    assert profkit.compare(before, with_findings()).fixes is None
    slow = Finding(
        "SYN001", "item-sync", "warning", "high", "", "", "", cost=Cost(9, per_step_ns=3)
    )
    before, after = with_findings(slow), with_findings()
    assert profkit.compare(before, after).fixes is not None
    on_other_device = replace(after, source=replace(after.source, devices=("NVIDIA B200",)))
    assert profkit.compare(before, on_other_device).fixes is None
    of_other_steps = with_findings(replace(slow, cost=Cost(per_step_ns=3)))
    assert profkit.compare(of_other_steps, after).fixes is None


def test_a_rule_that_was_skipped_on_one_side_is_not_compared() -> None:
    lacking = Unchecked("MEM001", "The recording has no steps.", "Step.")
    skipped = replace(with_findings(), unchecked=(*with_findings().unchecked, lacking))
    difference = profkit.compare(skipped, with_findings(leak()))
    assert difference.of_kind("finding") == ()
    ((rule, side),) = [(check.rule, check.side) for check in difference.not_compared]
    assert (rule, side) == ("MEM001", "before")
    assert [check.side for check in profkit.compare(with_findings(), skipped).not_compared] == [
        "after"
    ]


def test_without_a_device_operators_are_compared_by_self_time() -> None:
    slow = OpSummary("aten::mm", 8, 9_000_000, 8_000_000, 0, None, self_per_step_ns=2_666_667)
    quick = replace(slow, self_ns=4_000_000, self_per_step_ns=1_333_333)
    before, after = (
        replace(report, summary=replace(report.summary, top_ops=(op,)))
        for report, op in ((reports.build_cpu_report(), slow), (reports.build_cpu_report(), quick))
    )
    assert len(before.summary.steps) == 3
    assert brief(profkit.compare(before, after), "operator") == [
        ("better", "aten::mm", 1_333_333 - 2_666_667)
    ]


def test_a_kernel_beyond_the_end_of_a_cut_list_is_not_new() -> None:
    full = tuple(
        KernelSummary(f"k{i}", 1, 50_000_000 - i, 1, 0.01, None, None, None) for i in range(100)
    )
    tail = KernelSummary("tail", 1, 90_000_000, 1, 0.01, None, None, None)
    before, after = (
        replace(
            reports.build_gpu_report(),
            summary=replace(reports.build_gpu_report().summary, top_kernels=k),
        )
        for k in (full, (*full[:99], tail))
    )
    assert brief(profkit.compare(before, after), "kernel") == []


def test_snapshots_are_compared_by_stack_and_by_device(tmp_path: Path) -> None:
    main = ("/home/me/train.py", 30, "<module>")
    before = write(tmp_path / "a.pickle", [([main], 4096)])
    after = write(tmp_path / "b.pickle", [([main], 4096), ([main], 1 << 20)])
    difference = profkit.compare(before, after)
    (worse,) = difference.of_kind("memory")
    assert (worse.status, worse.device, worse.delta) == ("worse", "cuda:0", 1 << 20)
    assert (worse.n_before, worse.n_after) == (1, 2)
    assert [frame.line for frame in worse.stack] == [30]
    assert figure(difference, "active_bytes") == (4096, 4096 + (1 << 20))
    assert figure(difference, "n_blocks") == (1, 2)


def test_two_ranks_of_one_device_each_are_compared_with_a_note(tmp_path: Path) -> None:
    main = ("/home/me/train.py", 30, "<module>")
    rank0 = write(tmp_path / "a.pickle", [([main], 4096)], device=0)
    rank1 = write(tmp_path / "b.pickle", [([main], 4096)], device=1)
    difference = profkit.compare(rank0, rank1)
    assert difference.changes == ()
    assert figure(difference, "active_bytes") == (4096, 4096)
    assert "cuda:0" in difference.notes[0]
    assert "cuda:1" in difference.notes[0]


def test_a_snapshot_without_stacks_has_a_note(tmp_path: Path) -> None:
    bare = write(tmp_path / "a.pickle", [([], 4096)])
    full = write(tmp_path / "b.pickle", [([("train.py", 1, "f")], 4096)])
    assert profkit.compare(bare, full).notes == (
        "The snapshot before was recorded without stacks.",
    )


def test_a_trace_and_a_snapshot_are_not_compared(tmp_path: Path) -> None:
    trace = training().write(tmp_path / "a.json")
    snapshot = write(tmp_path / "b.pickle", [([], 4096)])
    with pytest.raises(UsageError, match=r"a\.json is a trace and .*b\.pickle a snapshot"):
        profkit.compare(trace, snapshot)


def test_recordings_with_different_overheads_have_a_note() -> None:
    before = reports.build_gpu_report()
    after = replace(before, source=replace(before.source, overhead_ratio=0.9))
    before = replace(before, source=replace(before.source, overhead_ratio=0.2))
    assert any("overhead" in note for note in profkit.compare(before, after).notes)
    assert not any("overhead" in note for note in profkit.compare(before, before).notes)


def test_a_saved_report_replaces_its_trace(tmp_path: Path) -> None:
    old, new = training(), training(wait_ns=5_000_000)
    before, after = old.write(tmp_path / "a.json"), new.write(tmp_path / "b.json")
    saved = tmp_path / "saved.json"
    saved.write_bytes(profkit.render(profkit.analyze(before), "json"))
    assert profkit.compare(saved, after) == profkit.compare(before, after)


def test_saved_reports_of_snapshots_have_a_note_on_missing_stacks(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.pickle", [([("train.py", 1, "f")], 4096)])
    report = profkit.analyze(path)
    assert any("every stack" in note for note in profkit.compare(report, path).notes)
    assert not any("every stack" in note for note in profkit.compare(path, path).notes)


def test_monitored_memory_of_two_runs_is_compared_under_the_names_of_its_files(
    tmp_path: Path,
) -> None:
    paths = []
    for name, rss in (("a", 1 << 30), ("b", 3 << 30)):
        samples = (MemorySample(step=8, ts_ns=1, host_rss_bytes=rss), MemorySample(step=9, ts_ns=2))
        live = LiveMemory("train", "optimizer", n_steps=9, monitored_ns=2, samples=samples)
        paths.append(tmp_path / f"{name}{SUFFIX}")
        paths[-1].write_bytes(gzip.compress(encode_live(live)))
    difference = profkit.compare(*paths)
    assert difference.before.path == str(paths[0])
    assert figure(difference, "host_rss_bytes") == (1 << 30, 3 << 30)
    assert "Host memory at the end is 3.00 GiB instead of 1.00 GiB" in str(difference)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step_ns", "worse"),
        ("gpu_idle_ns_per_step", "worse"),
        ("gpu_busy_ns_per_step", ""),
        ("busy_ns_per_step", ""),
        ("compute_ns", ""),
    ],
)
def test_a_busier_device_is_neither_better_nor_worse(name: str, expected: str) -> None:
    assert tone(Figure(name, None, "ns", 1_000, 1_030)) == expected
