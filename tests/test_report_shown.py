"""A report shows itself: printed as text, in a notebook as HTML, elsewhere as Markdown."""

from pathlib import Path

import pytest

import profkit
from profkit.model.report import Report
from profkit.testing import TraceBuilder


@pytest.fixture
def report(tmp_path: Path) -> Report:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.load(9_000_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    return profkit.analyze(b.write(tmp_path / "t.json"))


def test_a_printed_report_is_what_analyze_prints(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    print(report)
    printed = capsys.readouterr().out
    assert printed.encode() == profkit.render(report, "text")
    assert "starved-by-loader" in printed


def test_a_notebook_shows_a_report_as_html(report: Report) -> None:
    assert report._repr_html_() == profkit.render(report, "fragment").decode().rstrip("\n")
    assert "starved-by-loader" in report._repr_html_()


def test_a_prompt_shows_a_report_as_text_and_not_as_its_fields(report: Report) -> None:
    from IPython.lib.pretty import pretty

    assert pretty(report) == str(report)
    difference = profkit.compare(report, report)
    assert pretty(difference) == str(difference)
    assert "profkit-report" in difference._repr_html_()


def test_what_shows_no_html_shows_a_report_as_markdown(report: Report) -> None:
    shown = report._repr_markdown_()
    assert shown.startswith(("# ", "**"))
    assert "starved-by-loader" in shown
