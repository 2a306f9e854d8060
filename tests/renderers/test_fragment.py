"""The fragment is small, runs nothing, and shows what the text shows."""

import re
import shlex
from dataclasses import replace

import pytest

from profkit.model.report import Report
from profkit.renderers import fragment
from tests.renderers import reports
from tests.renderers.products import Page

REPORTS = {
    "gpu": reports.build_gpu_report(),
    "cpu": reports.build_cpu_report(),
    "watched": reports.watched_report(),
    "snapshot": reports.build_snapshot_report(2),
    "empty": reports.empty_report(),
    "unchecked": reports.unchecked_report(),
}


def html(report: Report, **options: object) -> str:
    return fragment.render(report, fragment.Options(**options)).decode()  # type: ignore[arg-type]


def words(report: Report, **options: object) -> str:
    page = Page()
    page.feed(html(report, **options))
    return " ".join(" ".join(page.words).split())


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_it_is_one_closed_element_that_runs_and_fetches_nothing(report: Report) -> None:
    made = html(report, verbose=True)
    page = Page()
    page.feed(made)
    assert page.open == []
    assert made.startswith('<div class="profkit-report">')

    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "base", "meta"}
    attributes = {name for _, names in page.elements for name in names}
    assert attributes <= {
        "class",
        "style",
        "title",
        "open",
        "scope",
        "aria-hidden",
        "aria-label",
        "role",
        "tabindex",
    }
    assert "url(" not in made
    assert "@import" not in made


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_style_of_a_fragment_applies_to_nothing_around_it(report: Report) -> None:
    style = re.search(r"<style>(.*?)</style>", html(report), re.DOTALL)
    assert style
    selectors = [part.split("{")[0] for part in style[1].strip().splitlines()]
    for selector in ",".join(selectors).split(","):
        assert selector.strip().startswith(".profkit-report")


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_notebooks_file_stays_small(report: Report) -> None:
    assert len(html(report)) < 20_000


def test_ten_thousand_findings_stay_small_too() -> None:
    assert len(html(reports.many_findings())) < 20_000
    assert "and 9,995 more" in words(reports.many_findings())


def test_it_shows_what_the_text_shows() -> None:
    said = words(reports.build_gpu_report())
    assert said.startswith("The GPU is busy 61% of each 174 ms step and waits 37% for data.")
    assert "warning train.py:31 The loader starves the GPU up to 65.0 ms per step (37%)" in said
    assert "Fix: Give the DataLoader workers" in said
    assert "GPU idle: waiting for data 65.0 ms 37%" in said
    assert "aten::cudnn_convolution 45.0 ms 21.0 ms 280 ms 318 model.py:12" in said
    assert "There is no" not in said
    assert "The recording has no stacks. Record with stacks=True. (SYN001, DAT003)" in said
    assert "PRF001: The first step takes 1.80 times" in said


def test_only_the_first_finding_is_open() -> None:
    opened = re.findall(r'<details class="pk-finding[^>]*>', html(reports.build_gpu_report()))
    assert ["open" in tag for tag in opened] == [True, False]


def test_a_severity_is_a_word_and_not_only_a_colour() -> None:
    assert '<span class="pk-severity">error</span>' in html(reports.build_gpu_report())


def test_it_names_the_command_that_opens_the_page_quoted_for_a_shell() -> None:
    report = reports.build_gpu_report()
    path = "/tmp/it's mine.json"  # noqa: S108  (a name; nothing is opened)
    said = words(replace(report, source=replace(report.source, path=path)))
    (command,) = re.findall(r"flame graphs: (.*)$", said)
    assert shlex.split(command) == ["profkit", "view", path]
    hostile = replace(report, source=replace(report.source, path="\x1b[31m.json"))
    assert "profkit view" not in words(hostile)


def test_without_a_file_the_last_line_names_none() -> None:
    nowhere = replace(
        reports.build_gpu_report(), source=replace(reports.build_gpu_report().source, path="")
    )
    assert words(nowhere).endswith(f"profkit {nowhere.profkit} · NVIDIA H200 · torch 2.13.0")


def test_the_bars_of_the_step_time_fill_its_width() -> None:
    widths = re.findall(r"width:([\d.]+)%", html(reports.build_gpu_report()))
    assert abs(sum(map(float, widths)) - 100) < 0.1
