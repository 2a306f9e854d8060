"""The terminal report fits one screen, and reads well at any width."""

import re
import unittest.mock
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len

import profkit
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.present.facts import busiest_ops
from profkit.renderers import text as terminal
from profkit.units import format_ns, format_share
from tests.renderers import reports
from tests.renderers.reports import build_starved

BASE = "/home/me/project"


def text(report: Report, **options: object) -> str:
    chosen = terminal.Options(**({"base": BASE} | options))  # type: ignore[arg-type]
    return terminal.render(report, chosen).decode()


def test_it_begins_with_the_headline() -> None:
    first, blank, *lines = text(reports.build_gpu_report(), width=120).splitlines()
    assert first.startswith("profkit 0.1.0 · traces/train/host_1")
    assert blank == ""
    assert " ".join(lines[:2]).startswith(
        "The GPU is busy 61% of each 174 ms step and waits 37% for data. Highest cost: "
        "the loader starves the GPU at train.py:31, up to 65.0 ms per step (37%). Highest memory "
        "cost: tensors are never freed at train.py:44 and 1 more line, 1.50 MiB per"
    )


def test_a_busy_machine_is_one_line_below_the_headline_and_said_once() -> None:
    fault = Finding(
        rule="PRF014",
        name="busy-machine",
        severity="warning",
        confidence="high",
        title="Other programs took the CPU",
        message="Other programs took the CPU for 49% of the recording: it had no core for 50 ms.",
        fix="Record again while nothing else runs.",
        evidence={"delayed_share": 0.49},
    )

    shown = text(replace(reports.build_gpu_report(), health=(fault,)), width=100)
    said = "Other programs took the CPU for 49% of the recording: times and shares are inflated."
    assert said in shown.splitlines()[:8]
    assert shown.count("Other programs took the CPU") == 1
    assert "warning PRF014: Record again while nothing else runs." in shown


REPORTS = {
    "gpu": reports.build_gpu_report(),
    "cpu": reports.build_cpu_report(),
    "watched": reports.watched_report(),
    "snapshot": reports.build_snapshot_report(2),
}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    lines = text(report, width=width, verbose=True).splitlines()
    assert [line for line in lines if cell_len(line) > width] == []
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_no_figure_is_cut_at_any_width(report: Report, width: int) -> None:
    shown = text(report, width=width, verbose=True)
    tables = shown.partition("Findings: ")[2]
    assert not re.search(r"\d ?…|\d [a-zµ]…|\d (Ki|Mi|Gi)…", tables)
    for kernel in report.summary.top_kernels:
        assert format_ns(kernel.total_ns) in shown
        assert kernel.per_step_ns is None or format_ns(kernel.per_step_ns) in shown
    per_step, _, operators = busiest_ops(report)
    for op in operators:
        assert format_ns((op.self_per_step_ns or 0) if per_step else op.self_ns) in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_places_in_tables_keep_their_line_number_at_any_width(width: int) -> None:
    report = reports.build_gpu_report()
    where = Location("/home/me/project/a_rather_long_name_of_a_file.py", 1234, "forward")
    kernels = tuple(
        replace(top_kernel, location=where) for top_kernel in report.summary.top_kernels
    )
    operators = tuple(replace(top_op, location=where) for top_op in report.summary.top_ops)
    summary = replace(report.summary, top_kernels=kernels, top_ops=operators)
    shown = text(replace(report, summary=summary), width=width, verbose=True)
    n_operators = len(busiest_ops(replace(report, summary=summary))[2])
    assert shown.count(".py:1234") == len(kernels) + n_operators


def test_a_wide_terminal_shows_whole_names_and_sentences_of_at_most_120_columns() -> None:
    report = reports.build_gpu_report()
    lines = text(report, width=200).splitlines()
    assert max(map(cell_len, lines)) <= 200
    assert any("vectorized_elementwise_kernel<…CUDAFunctor_add…>" in line for line in lines)
    prose = [line for line in lines if line.endswith((".", ","))]
    assert max(map(cell_len, prose)) <= 120


def test_other_places_are_cut_at_folders_and_keep_their_line_number() -> None:
    report = reports.build_gpu_report()
    deep = Location(f"/opt/{'folder/' * 20}model.py", 7, "forward")
    finding = replace(build_starved(), locations=(*build_starved().locations, deep))
    for width in (40, 80, 120):
        shown = text(replace(report, findings=(finding,)), width=width, verbose=True)
        assert "/model.py:7" in shown
        assert "also at: …/" in shown


def test_a_long_path_is_on_a_separate_line() -> None:
    report = reports.build_gpu_report()
    deep = f"/data/{'run/' * 9}train.json.gz"
    lines = text(replace(report, source=replace(report.source, path=deep)), width=60).splitlines()
    assert lines[0].startswith("profkit 0.1.0 · …/run/run/")
    assert lines[0].endswith("train.json.gz")
    assert lines[1] == "NVIDIA H200 · torch 2.13.0"


def test_it_fits_one_screen() -> None:
    report = reports.build_gpu_report()
    full = replace(
        report,
        findings=report.findings * 3,
        summary=replace(
            report.summary,
            top_kernels=report.summary.top_kernels * 3,
            top_ops=report.summary.top_ops * 3,
        ),
    )
    assert len(text(full, width=100).splitlines()) <= 40
    assert len(text(report, width=100).splitlines()) <= 40


def build_crowded_report() -> Report:
    """Long paths, many parts, wide costs, and faults of the recording."""
    report = reports.build_gpu_report()
    where = Location("/home/me/project/lib/a_rather_long_name_of_a_module.py", 1234, "forward")
    costly = replace(
        report.findings[0],
        locations=(where,),
        name="unfused-optimizer",
        fix="Fuse it. " * 20,
        cost=replace(report.findings[0].cost, basis="estimate"),
    )
    fault = replace(reports.no_stacks(), severity="warning", message="Device work is lost, " * 12)
    parts = reports.breakdown(
        6,
        on_device=True,
        compute=600 * reports.MS,
        copy=30 * reports.MS,
        idle_data=340 * reports.MS,
        idle_sync=20 * reports.MS,
        idle_allocator=20 * reports.MS,
        communication=24 * reports.MS,
        idle_launch=4 * reports.MS,
        idle_device=3 * reports.MS,
        idle_unknown=2 * reports.MS,
        idle_host=reports.MS,
    )
    note = replace(reports.no_stacks(), message="The profiler lost some of its buffers. " * 4)

    return replace(
        report,
        findings=(costly,) * 5,
        health=(fault, note),
        summary=replace(report.summary, breakdown=parts),
    )


def test_a_crowded_report_fits_a_screen_of_80_columns_and_names_every_finding() -> None:
    lines = text(build_crowded_report(), width=80).splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if cell_len(line) > 80] == []
    first, *brief = [line for line in lines if re.match(r"^ \d  ", line)]
    assert "a_rather_long_name_of_a_module.py:1234" in first
    assert len(brief) == 4
    for line in brief:
        assert ":1234" in line
        assert "unfused-optimizer" in line
        assert line.endswith("about 65.0 ms per step (37%)")


def test_small_parts_that_do_not_fit_on_a_line_are_the_shortest_ones() -> None:
    shown = text(build_crowded_report(), width=80)
    (line,) = [line for line in shown.splitlines() if "also: " in line]
    assert line == "  also: GPU idle: launch latency 667 µs, …"
    assert "GPU idle: waiting for CPU launches 167 µs" in text(build_crowded_report(), verbose=True)


def test_what_does_not_fit_a_screen_is_shortened_and_every_finding_is_named() -> None:
    report = reports.build_gpu_report()
    many = replace(report, findings=(report.findings[0],) * 5)
    short, whole = text(many), text(many, verbose=True)
    assert whole.count("Fix: ") == 5
    assert 1 <= short.count("Fix: ") < 5
    named = re.compile(r"^ \d  .*starved-by-loader", re.MULTILINE)
    assert len(named.findall(short)) == len(named.findall(whole)) == 5
    assert "Kernels: volta_sgemm_64x64_nt 35.0 ms per step, " in short
    assert re.search(r"^Kernels +per step +total +share +calls", whole, re.MULTILINE)
    assert "note PRF001: The first step takes 1.80 times" in short


def test_faults_and_messages_give_way_last_and_doubt_stays() -> None:
    report = reports.build_gpu_report()
    long = "Collectives take 32.1 ms per step. 5 more were issued than ran. "
    finding = replace(report.findings[0], message=long * 3, confidence="medium")
    fault = replace(reports.no_stacks(), severity="warning", message=long.strip() * 9)
    many = replace(
        report,
        findings=(finding,) + (report.findings[0],) * 12,
        health=(fault, reports.no_stacks(), reports.no_stacks()),
    )

    short = text(many, top=10)
    assert len(short.splitlines()) <= 40
    assert "warning PRF001: Collectives take 32.1 ms per step." in short
    assert "notes PRF001, PRF001: `profkit analyze -v` explains them" in short
    assert "    Collectives take 32.1 ms per step. (medium confidence)" in short
    assert short.count("Fix: ") == 1

    whole = text(many, verbose=True)
    assert "5 more were issued than ran. (medium confidence)" in " ".join(whole.split())


def test_the_critical_path_has_three_lines_and_all_of_them_with_verbose() -> None:
    lines = text(reports.build_gpu_report(), width=100).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Critical path"))

    head, kernels, data, end = lines[at : at + 4]
    assert head == (
        "Critical path per step (shares of 174 ms): kernels 50%, loading data 37%, operators 12%"
    )
    assert kernels == (
        "  kernels       86.7 ms   50% "
        "lib/model.py:12, mostly vectorized_elementwise_kernel<…> (25%)"
    )
    assert data.startswith("  loading data  65.0 ms   37% model.py:12, mostly void at::native")
    assert data.endswith(" (19%)")
    assert end == ""

    verbose = text(reports.build_gpu_report(), width=100, verbose=True)
    assert "operators 12%, gaps 0.6%" in " ".join(verbose.split())
    assert "\n  operators     21.3 ms   12% model.py:12, " in verbose


def test_lines_that_the_headline_has_are_not_on_the_critical_path_again() -> None:
    report = reports.build_gpu_report()
    path = report.summary.critical_path
    assert path is not None
    share = format_share(path.lines[0].share)
    said = f"Most of the time, {share} of each step, goes to model.py:12."
    with unittest.mock.patch("profkit.present.time_sections.headline", return_value=said):
        brief = text(report, width=100)
        assert f"{share} lib/model.py:12" not in brief
        assert "  loading data  65.0 ms" in brief
        assert f"{share} lib/model.py:12" in text(report, width=100, verbose=True)


def test_a_critical_path_of_which_all_is_said_has_no_section() -> None:
    report = reports.build_gpu_report()
    path = report.summary.critical_path
    assert path is not None
    python = replace(path.lines[0], kind="python", location=Location(), main_name="")
    summary = replace(report.summary, critical_path=replace(path, lines=(python,)))
    shown = replace(report, summary=summary)
    assert "Critical path" not in text(shown)
    assert "outside operators" in text(shown, verbose=True).partition("Critical path")[2]


def test_a_name_with_less_than_half_of_its_line_is_called_the_longest() -> None:
    report = reports.build_gpu_report()
    path = report.summary.critical_path
    assert path is not None
    lines = tuple(replace(line, main_share=line.share / 5) for line in path.lines)
    changed = replace(report.summary, critical_path=replace(path, lines=lines))
    shown = text(replace(report, summary=changed), width=100)
    assert "model.py:12, longest: vectorized_elementwise_kernel<…> (10%)" in shown
    assert "mostly" not in shown


def test_operators_that_only_mark_a_moment_are_in_no_list() -> None:
    report = reports.build_gpu_report()
    mark = replace(report.summary.top_ops[0], name="mark", total_ns=0, self_ns=0, device_ns=0)
    for top_ops in ((*report.summary.top_ops, mark), (mark,)):
        shown = text(replace(report, summary=replace(report.summary, top_ops=top_ops)))
        assert "mark" not in shown
        assert ("Operators: " in shown) == (len(top_ops) > 1)


def test_a_path_that_is_mostly_unexplained_says_so() -> None:
    shown = text(reports.build_cpu_report(), width=100)
    assert "Critical path per step (shares of 12.0 ms): operators 67%" in shown
    assert "- The recording shows no cause for 5.6% of the critical path" in shown
    assert "shows no cause" not in text(reports.build_gpu_report())


def test_a_path_without_steps_of_which_nothing_is_known_is_left_out() -> None:
    report = reports.build_cpu_report()
    path = report.summary.critical_path
    assert path is not None
    for per_step_ns, share, is_shown in ((None, 0.95, False), (None, 0.5, True), (12, 0.95, True)):
        changed = replace(path, per_step_ns=per_step_ns, unexplained_share=share)
        summary = replace(report.summary, critical_path=changed)
        assert ("Critical path" in text(replace(report, summary=summary))) == is_shown
        assert "Critical path" in text(replace(report, summary=summary), verbose=True)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_critical_path_keeps_its_source_line_at_any_width(width: int) -> None:
    shown = text(reports.build_gpu_report(), width=width)
    assert shown.partition("Critical path")[2].partition("Findings")[0].count("model.py:12") == 2


def test_a_finding_has_its_place_cost_and_fix() -> None:
    lines = text(reports.build_gpu_report(), width=100).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(" 1  "))
    assert lines[at].startswith(" 1  train.py:31  warning starved-by-loader DAT001")
    assert lines[at].endswith("up to 65.0 ms per step (37%)")
    assert "Fix: Give the DataLoader workers" in "\n".join(lines[at : at + 5])


def test_a_long_place_keeps_its_file_and_line() -> None:
    report = reports.build_gpu_report()
    deep = Location(f"/opt/{'very_long_folder/' * 9}train.py", 31, "main")
    lines = text(replace(report, findings=(replace(build_starved(), locations=(deep,)),)), width=60)
    assert "\n 1  …/train.py:31  warning starved-by-loader DAT001\n" in lines


def test_the_bars_of_the_step_time_follow_each_other() -> None:
    lines = text(reports.build_gpu_report(), width=100).splitlines()
    bars = [line for line in lines if "█" in line or "▒" in line]
    spans = [(re.search("[█▒]", bar).start(), len(bar)) for bar in bars]  # type: ignore[union-attr]
    assert len(bars) == 4
    for (_, end), (start, _) in pairwise(spans):
        assert abs(start - end) <= 1
    assert all("idle" in bar for bar in bars if "▒" in bar)


def test_a_cpu_run_has_no_empty_device_tables() -> None:
    shown = text(reports.build_cpu_report())
    assert "Operators take 67% of each 12.0 ms step on the CPU" in shown
    assert "GPU" not in shown
    assert "Kernels" not in shown
    assert "self" in shown


def test_only_coloured_text_has_escapes_and_they_change_nothing_else() -> None:
    plain = text(reports.build_gpu_report())
    colored = text(reports.build_gpu_report(), color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored).split() == plain.split()


def test_without_unicode_the_text_is_ascii() -> None:
    shown = text(reports.build_gpu_report(), unicode=False)
    assert shown.isascii()
    assert "333 us" in shown
    assert "####" in shown


def test_top_and_verbose_choose_how_much_is_shown() -> None:
    report = reports.many_findings()
    assert text(report, top=2).count("starved-by-loader") == 1
    assert "9,998 more (--top 10000 shows all)" in text(report, top=2)
    verbose = " ".join(text(reports.build_gpu_report(), verbose=True).split())
    assert "evidence: data wait 63.0 ms, 67.0 ms, workers 0" in verbose
    assert "evidence: " not in text(reports.build_gpu_report())


def test_a_brief_report_is_the_headline_and_a_line_for_each_finding() -> None:
    report = build_crowded_report()
    brief = text(report, brief=True, width=80)
    whole = text(report, verbose=True, width=80)
    assert len(brief.splitlines()) < len(whole.splitlines()) / 2
    for finding in report.findings[:5]:
        assert finding.name in brief
        assert finding.fix not in " ".join(brief.split())
    assert whole.splitlines()[2] == brief.splitlines()[2]
    assert not re.search("Step time|Memory over|skipped", brief)


def test_costs_name_their_basis() -> None:
    report = reports.build_gpu_report()
    for basis, words in (("measured", " 65.0 ms"), ("estimate", "about 65.0 ms")):
        cost = Cost(ns=1, per_step_ns=65_000_000, basis=basis)  # type: ignore[arg-type]
        finding = replace(report.findings[0], cost=cost)
        assert words in text(replace(report, findings=(finding,)))


def test_skipped_checks_are_grouped_by_reason() -> None:
    shown = text(reports.build_gpu_report(), verbose=True)
    assert "- The recording has no stacks. Record with stacks=True. (SYN001, DAT003)" in shown
    brief = text(reports.build_gpu_report())
    assert "3 checks skipped: `profkit analyze -v` lists them and what they need" in brief


def test_consecutive_rule_ids_are_shown_as_a_range() -> None:
    shown = profkit.render(reports.unchecked_report(), "md").decode()
    assert "(SYN000 to SYN012)" in shown
    every = text(reports.unchecked_report(), verbose=True)
    assert all(f"SYN{n:03}" in every for n in range(13))


def test_overhead_and_faults_of_the_recording_are_shown() -> None:
    every = text(reports.build_cpu_report())
    assert "Recording slowed the program down by about 80%; times include that, so go by" in every
    assert "note PRF001: The first step takes 1.80 times" in text(reports.build_gpu_report())


def test_rich_markup_in_names_is_shown_as_it_is() -> None:
    assert "[red]markup[/red]" in text(reports.build_hostile_report("[red]markup[/red]"), width=120)
    assert ":smile:" in text(reports.build_hostile_report("emoji :smile:"), width=120)


def test_no_line_end_separates_a_figure_from_its_unit() -> None:
    for width in range(40, 121):
        for line in text(reports.build_gpu_report(), width=width).splitlines():
            assert not re.match(r"\s*(ns|µs|ms|MiB|GiB)\b", line)


def test_all_kernels_keep_a_readable_name() -> None:
    shown = text(reports.build_gpu_report(), width=76)
    assert "void at::native" not in shown
    assert "mostly vectorized_e" in shown
