"""CSV: rows that a spreadsheet reads without running them."""

import csv
import io
import json
from dataclasses import replace

import pytest

from profkit.api import render
from profkit.errors import UsageError
from profkit.model.report import Report
from profkit.present.tables import TABLES, table
from profkit.renderers import csv_tables
from tests.renderers import reports


def rows(report: Report, name: str = "findings", **options: str) -> list[dict[str, str]]:
    product = render(report, "csv", table=name, **options).decode()
    return list(csv.DictReader(io.StringIO(product), strict=True))


def test_a_finding_is_a_row_with_its_source_line_cost_and_fix() -> None:
    report = reports.build_gpu_report()
    starved, leak, *_ = rows(report, base="/home/me/project")
    finding = report.findings[0]
    assert starved["number"] == "1"
    assert (starved["rule"], starved["severity"]) == ("DAT001", "warning")
    assert (starved["file"], starved["line"]) == ("train.py", "31")
    assert starved["message"] == finding.message
    assert starved["fix"] == finding.fix
    assert int(starved["cost_ns"]) == finding.cost.ns
    assert starved["cost_bytes"] == ""
    assert starved["cost_basis"] == "upper-bound"
    assert int(leak["cost_bytes"]) == report.findings[1].cost.bytes
    assert leak["held_by"] == "__main__.losses[17]"


def test_skipped_checks_and_faults_of_the_recording_are_rows_too() -> None:
    report = reports.build_gpu_report()
    severities = [row["severity"] for row in rows(report)]
    assert severities == ["warning", "error", "note", "unchecked", "unchecked", "unchecked"]
    last = rows(report)[-1]
    assert (last["rule"], last["message"]) == ("MEM002", "The recording has no memory events.")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-2+3", "@SUM(A1)", " =1", "\t=1", "＝1"])  # noqa: RUF001  (a wide sign)
def test_no_text_is_a_formula(text: str) -> None:
    report = reports.build_hostile_report(text)
    for name in TABLES:
        for row in rows(report, name):
            for column, cell in row.items():
                if not column.endswith(("_ns", "_bytes", "n", "line", "number", "share")):
                    assert not cell.lstrip().startswith(("=", "+", "-", "@", "＝"))  # noqa: RUF001
    (kernel, *_) = rows(report, "kernels")
    assert text.strip() in kernel["name"].replace("\\t", "\t")


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_hostile_names_stay_in_their_cell(text: str) -> None:
    report = reports.build_hostile_report(text)
    for name in TABLES:
        product = render(report, "csv", table=name).decode()
        shown = table(report, name)
        assert len(product.splitlines()) == 1 + len(shown.rows)
        assert all(None not in row for row in rows(report, name))


def test_the_tables_have_the_reports_own_figures() -> None:
    report = reports.build_gpu_report()
    summary = report.summary
    assert [int(row["total_ns"]) for row in rows(report, "kernels")] == [
        kernel.total_ns for kernel in summary.top_kernels
    ]
    assert [row["name"] for row in rows(report, "operators")] == [op.name for op in summary.top_ops]
    assert [int(row["dur_ns"]) for row in rows(report, "steps")] == [
        s.dur_ns for s in summary.steps
    ]
    assert [(row["cause"], int(row["ns"])) for row in rows(report, "idle")] == [
        (cause.cause, cause.ns) for cause in summary.devices[0].idle_causes
    ]
    (copy,) = rows(report, "copies")
    assert int(copy["bytes"]) == 462_422_016


def integers(tree: object) -> set[int]:
    """Every whole number of a JSON report."""
    if isinstance(tree, dict | list):
        inner = tree.values() if isinstance(tree, dict) else tree
        return set().union(*map(integers, inner))
    return {tree} if isinstance(tree, int) else set()


@pytest.mark.parametrize(
    "report",
    [
        reports.build_gpu_report(),
        reports.build_cpu_report(),
        reports.watched_report(),
        reports.build_snapshot_report(),
    ],
    ids=["gpu", "cpu", "watched", "snapshot"],
)
def test_every_figure_is_in_the_json(report: Report) -> None:
    known_integers = integers(json.loads(render(report, "json")))
    n_figures = 0
    for name in TABLES:
        for row in rows(report, name):
            figures = [int(c) for k, c in row.items() if c.isdecimal() and k != "number"]
            assert set(figures) <= known_integers
            n_figures += len(figures)
    assert n_figures > 5


def test_allocation_sites_are_listed_at_the_peak_and_at_the_end() -> None:
    report = reports.build_snapshot_report(2)
    memory = report.summary.memory
    assert memory is not None
    sites = [site for d in memory.devices for site in (*d.peak_sites, *d.top_sites)]
    site_rows = rows(report, "memory_sites")
    assert [int(row["bytes"]) for row in site_rows] == [site.bytes for site in sites]
    assert {row["moment"] for row in site_rows} == {"peak", "end"}
    assert len(rows(reports.watched_report(), "memory_steps")) == 14


def test_column_names_end_in_their_unit() -> None:
    report = reports.build_gpu_report()
    for name in TABLES:
        for column in table(report, name).columns:
            if column.kind == "int" and not column.unit:
                assert column.name.startswith("n_") or column.name in {
                    "n",
                    "number",
                    "line",
                    "step",
                    "entry",
                    "depth",
                    "rank",
                    "last_rank",
                }


def test_only_tables_with_rows_are_listed() -> None:
    assert csv_tables.table_names(reports.empty_report(), csv_tables.Options()) == ("findings",)
    assert "kernels" in csv_tables.table_names(reports.build_gpu_report(), csv_tables.Options())


def test_several_reports_have_one_header_and_a_column_for_the_recording() -> None:
    gpu = reports.build_gpu_report()
    other_report = replace(gpu, source=replace(gpu.source, path="other.json"))
    products = [render(report, "csv") for report in (gpu, other_report)]
    row_list = list(csv.DictReader(io.StringIO(csv_tables.together(products).decode())))
    assert len(row_list) == 2 * len(rows(gpu))
    assert {row["recording"] for row in row_list} == {gpu.source.path, "other.json"}


def test_an_unknown_table_is_a_usage_error_that_lists_the_tables() -> None:
    with pytest.raises(UsageError, match="There is no table 'kernel'") as refused:
        render(reports.build_gpu_report(), "csv", table="kernel")
    assert "kernels" in refused.value.hint
