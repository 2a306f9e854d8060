"""Markdown: what is visible at once, what is folded, and what fits into a comment."""

import re
from dataclasses import replace

from profkit.api import render
from profkit.model.report import Report
from tests.renderers import reports


def shown(report: Report, **options: object) -> str:
    return render(report, "md", **options).decode()


def test_findings_are_visible_and_tables_are_folded() -> None:
    text = shown(reports.build_gpu_report())
    opened = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "Findings: 2 found" in opened
    assert "train.py:31" in opened
    assert "volta_sgemm" not in opened
    assert re.findall("<summary>(.*?)</summary>", text) == [
        "Operators",
        "Kernels",
        "Details",
        "Recording",
        "3 checks skipped",
    ]


def test_every_fold_is_closed_and_has_room_for_markdown_within() -> None:
    for report in (
        reports.build_gpu_report(),
        reports.build_snapshot_report(2),
        reports.unchecked_report(),
    ):
        text = shown(report, verbose=True)
        assert text.count("<details") == text.count("</details>")
        assert text.count("</summary>\n\n") == text.count("<details")
        assert text.count("\n\n</details>") == text.count("<details")


def test_a_severe_fault_of_the_recording_is_not_folded() -> None:
    fault = replace(reports.no_stacks(), severity="warning")
    text = shown(replace(reports.build_gpu_report(), health=(fault,)))
    assert "\n## Recording\n" in text
    assert "<summary>Recording</summary>" not in text
    assert "<summary>Recording</summary>" in shown(reports.build_gpu_report())


def test_it_fits_into_a_comment_and_says_that_the_rest_is_omitted() -> None:
    long = replace(reports.build_starved(), message="word " * 4_000)
    report = replace(reports.build_gpu_report(), findings=(reports.build_starved(), *(long,) * 4))
    text = shown(report)
    assert len(text) <= 65_536
    assert "the rest is omitted: it does not fit into a comment" in text
    assert "1. **" in text
    assert text.endswith("</sub>\n")
    assert "omitted" not in shown(reports.build_gpu_report())


def test_verbose_has_no_limit() -> None:
    assert len(shown(reports.many_findings(), verbose=True)) > 1_000_000
