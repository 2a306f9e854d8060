"""Markdown: what stands open, what is folded, and what fits into a comment."""

import re
from dataclasses import replace

from profkit.api import render
from profkit.model.report import Report
from tests.renderers import reports


def shown(report: Report, **options: object) -> str:
    return render(report, "md", **options).decode()


def test_what_to_change_stands_open_and_tables_are_folded() -> None:
    text = shown(reports.gpu_report())
    opened = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "What to change: 2 found" in opened
    assert "train.py:31" in opened
    assert "volta_sgemm" not in opened
    assert re.findall("<summary>(.*?)</summary>", text) == [
        "Kernels", "Operators", "Counted", "Not checked: 3 rules", "The recording",
    ]  # fmt: skip


def test_every_fold_is_closed_and_has_room_for_markdown_within() -> None:
    for report in (reports.gpu_report(), reports.snapshot_report(2), reports.unchecked_report()):
        text = shown(report, verbose=True)
        assert text.count("<details") == text.count("</details>")
        assert text.count("</summary>\n\n") == text.count("<details")
        assert text.count("\n\n</details>") == text.count("<details")


def test_a_fault_that_the_reader_must_know_of_is_not_folded() -> None:
    fault = replace(reports.no_stacks(), severity="warning")
    text = shown(replace(reports.gpu_report(), health=(fault,)))
    assert "<details open>\n<summary>The recording</summary>" in text
    assert "<details open>" not in shown(reports.gpu_report())


def test_it_fits_into_a_comment_and_says_what_does_not() -> None:
    long = replace(reports.starved(), message="word " * 4_000)
    report = replace(reports.gpu_report(), findings=(reports.starved(), *(long,) * 4))
    text = shown(report)
    assert len(text) <= 65_536
    assert "what does not fit into a comment is left out" in text
    assert "1. **" in text
    assert text.endswith("</sub>\n")
    assert "left out" not in shown(reports.gpu_report())


def test_all_of_it_is_as_long_as_it_is() -> None:
    assert len(shown(reports.many_findings(), verbose=True)) > 1_000_000
