"""The document of a report or comparison: what every format shows, under the same labels."""

from dataclasses import replace

import pytest

import profkit
from profkit.model.report import Report
from profkit.present.difference_document import build_difference_document
from profkit.present.document import (
    Document,
    FindingBlock,
    Name,
    Remainder,
    SourceLine,
    TableBlock,
    TimeParts,
)
from profkit.present.renderer import ReadersOptions
from profkit.present.report_document import build_report_document
from tests.renderers import reports
from tests.renderers.products import Page
from tests.renderers.test_difference import difference

REPORTS = {
    "gpu": reports.build_gpu_report(),
    "cpu": reports.build_cpu_report(),
    "monitored": reports.watched_report(),
    "snapshot": reports.build_snapshot_report(2),
    "unchecked": reports.unchecked_report(),
}


def document(report: Report, *, top: int = 5, verbose: bool = False) -> Document:
    return build_report_document(report, ReadersOptions(top=top, verbose=verbose, base="/home/me"))


def text_of(product: bytes, name: str) -> str:
    """Return a product's text on one line, without the marks of its format."""
    text = product.decode()
    if name == "fragment":
        page = Page()
        page.feed(text)
        text = " ".join(page.words)
    return " ".join(text.replace("\\", "").split())


@pytest.mark.parametrize("name", ["text", "md", "fragment"])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_every_format_has_the_same_headings_labels_and_figures(report: Report, name: str) -> None:
    options = {"verbose": True, "base": "/home/me", "width": 200}
    shown = text_of(profkit.render(report, name, **options), name)
    shown_document = document(report, verbose=True)
    assert shown_document.sections
    assert shown_document.headline in shown

    for section in shown_document.sections:
        assert section.heading in shown
        for block in section.blocks:
            if isinstance(block, FindingBlock):
                assert block.cost in shown
                assert not block.fix or "Fix:" in shown
                assert all(f"{entry.label}:" in shown for entry in block.labelled)
            elif isinstance(block, TimeParts):
                assert all(part.label in shown and part.time in shown for part in block.parts)
            elif isinstance(block, TableBlock):
                cells = [cell for row in block.rows for cell in row.cells]
                assert all(cell in shown for cell in cells if isinstance(cell, str))


@pytest.mark.parametrize("name", ["text", "md", "fragment", "html"])
def test_every_format_of_a_comparison_has_the_same_headings_and_figures(name: str) -> None:
    shown = text_of(
        profkit.render(difference(), name, verbose=True, width=200),
        "fragment" if name == "html" else name,
    )
    for section in build_difference_document(difference(), ReadersOptions(verbose=True)).sections:
        assert section.heading in shown
        for block in section.blocks:
            if isinstance(block, TableBlock):
                cells = [cell for row in block.rows for cell in row.cells]
                assert all(cell in shown for cell in cells if isinstance(cell, str))


def test_top_limits_findings_and_rows_and_says_how_many_are_hidden() -> None:
    (findings,) = [
        section
        for section in document(reports.many_findings(), top=2).sections
        if section.title == "Findings"
    ]
    *shown, remainder = findings.blocks
    assert findings.figures == "10,000 found, highest cost first"
    assert len(shown) == 2
    assert remainder == Remainder("… and 9,998 more (--top 10000 shows all)")
    whole = document(reports.many_findings(), verbose=True).sections
    assert [len(section.blocks) for section in whole if section.title == "Findings"] == [10_000]


def test_small_parts_share_a_line() -> None:
    block = document(reports.build_gpu_report()).sections[0].blocks[0]
    assert isinstance(block, TimeParts)
    assert [part.kind for part in block.large] == ["compute", "copy", "idle", "idle"]
    assert block.small.endswith(" 333 µs")
    assert [part.start for part in block.parts] == sorted(part.start for part in block.parts)


def test_text_is_on_one_line_and_safe_for_a_terminal() -> None:
    hostile = document(reports.build_hostile_report("a\nb \x1b[31m"), verbose=True)
    assert "\n" not in hostile.headline
    (finding,) = [
        block
        for section in hostile.sections
        for block in section.blocks
        if isinstance(block, FindingBlock)
    ]
    assert (finding.message, finding.doubt) == ("a b \\x1b[31m", " (low confidence)")
    assert finding.place == SourceLine("a b \\x1b[31m", 1)


def test_a_finding_without_a_place_says_that_no_stack_was_recorded() -> None:
    report = replace(reports.empty_report(), findings=(reports.bare(),))
    (section,) = document(report).sections
    (finding,) = section.blocks
    assert isinstance(finding, FindingBlock)
    assert finding.place == "source line not recorded"
    assert section.heading == "Findings: 1 found"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (43, "lib/deep/model.py:12 in forward, was line 9"),
        (42, "lib/deep/model.py:12, was line 9"),
        (31, "lib/deep/model.py:12"),
        (19, "…/deep/model.py:12"),
        (17, "…/model.py:12"),
        (12, "model.py:12"),
    ],
)
def test_a_source_line_loses_its_function_before_its_folders(width: int, text: str) -> None:
    assert SourceLine("lib/deep/model.py", 12, "forward", before_line=9).fitted(width) == text


def test_a_function_without_a_line_is_named_before_the_file() -> None:
    place = SourceLine("lib/model.py", 7, "forward", is_function=True)
    assert str(place) == "forward (lib/model.py:7)"
    assert place.short == place.fitted(20) == "forward (model.py:7)"


def test_a_kernel_loses_its_template_arguments() -> None:
    assert Name(reports.VECTORIZED, is_kernel=True).fitted(60) == (
        "vectorized_elementwise_kernel<…CUDAFunctor_add…>"
    )
    assert Name("aten::a_long_operator").fitted(12) == "aten::a_…tor"
