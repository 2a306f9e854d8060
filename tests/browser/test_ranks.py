"""The ranks of a job in a browser: heat map, timeline, tables."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from profkit.api import render
from profkit.model.report import Report
from profkit.units import format_ns
from tests import job_traces
from tests.browser.pages import Opener, violations
from tests.job_traces import LATE_NS, repeat_ranks


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return job_traces.job(tmp_path_factory.mktemp("job"), 3)


@pytest.fixture(scope="module")
def small(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "small.html"
    path.write_bytes(render(report, "html"))
    return path


def drawn(page: Page) -> Page:
    expect(page.locator("#ranks-view")).to_have_attribute("data-resolution", "0")
    return page


def expect_range(page: Page, begin_ns: int, end_ns: int) -> None:
    """Wait until the timeline, which is drawn with the next frame, shows a time."""
    view = page.locator("#ranks-view")
    expect(view).to_have_attribute("data-from", str(begin_ns))
    expect(view).to_have_attribute("data-to", str(end_ns))


def test_arrows_move_between_cells_and_enter_shows_the_step(
    opened: Opener, small: Path, report: Report
) -> None:
    page = drawn(opened(small, reduced_motion="reduce"))
    cells = page.locator("#ranks-heat td")
    assert page.locator('#ranks-heat td[tabindex="0"]').count() == 1

    cells.first.focus()
    expect(page.locator("#tip")).to_contain_text("Rank 0, ProfilerStep#0")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    tip = page.locator("#tip")
    expect(tip).to_contain_text("Rank 2, ProfilerStep#1")
    expect(tip).to_contain_text(format_ns(report.ranks[2].steps_ns[1]))
    page.keyboard.press("Enter")
    assert report.lanes is not None
    begins, ends = zip(*(lane.steps[1] for lane in report.lanes.lanes), strict=True)
    expect_range(page, min(begins), max(ends))
    expect(page.locator("#ranks-view")).to_be_in_viewport()


def test_without_waiting_cells_have_other_times(
    opened: Opener, small: Path, report: Report
) -> None:
    page = opened(small)
    cells, first = page.locator("#ranks-heat td"), report.ranks[0]
    expect(cells.first).to_have_text(format_ns(first.steps_ns[0]))
    page.locator("#ranks-heat").get_by_text("Without waiting").click()
    expect(cells.first).to_have_text(format_ns(first.steps_ns[0] - LATE_NS))
    expect(cells.first).to_have_attribute("data-level", "2")
    expect(cells.last).not_to_have_attribute("data-level", "2")
    cells.first.hover()
    expect(page.locator("#tip")).to_contain_text(f"{format_ns(LATE_NS)} waiting for other ranks")


def test_the_timeline_marks_the_last_rank(opened: Opener, small: Path) -> None:
    page = drawn(opened(small, reduced_motion="reduce"))
    names = page.locator("#ranks .lane-name")
    expect(names).to_have_text(["rank 0 · one", "rank 1 · other", "rank 2 · other"])
    page.locator("#ranks-search").fill("host is late")
    expect(page.locator("#ranks-found")).to_contain_text("4 events")
    page.locator("#ranks-next").click()
    details = page.locator("#ranks-details")
    expect(details).to_contain_text("rank 2 · other")
    expect(details).to_contain_text("the others wait for this rank")
    expect(details).to_contain_text(format_ns(LATE_NS))


def test_a_search_finds_the_lane_of_a_rank(opened: Opener, report: Report, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_bytes(render(repeat_ranks(report, 200, 2), "html"))
    page = drawn(opened(path, reduced_motion="reduce"))
    page.locator("#ranks-search").fill("rank 15")
    expect(page.locator("#ranks-found")).to_have_text("rank 15 · other")
    lane = page.locator("#ranks .lane-name", has_text="rank 15 ·")
    page.locator("#ranks-view").scroll_into_view_if_needed()
    expect(lane).to_be_in_viewport()
    page.locator("#ranks-search").fill("rank 999")
    expect(page.locator("#ranks-found")).to_have_text("no match")


@pytest.mark.parametrize("width", [400, 1400])
def test_a_thousand_ranks_fit_the_page(
    opened: Opener, report: Report, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "many.html"
    path.write_bytes(render(repeat_ranks(report, 1000, 300), "html"))
    page = opened(path, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#ranks-heat td").count() <= 2_400
    page.locator("#ranks-heat").get_by_text("Without waiting").click()
    first = page.locator("#ranks-heat tbody tr").first.locator("td").first
    first.hover()
    expect(page.locator("#tip")).to_contain_text("Rank 17")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(opened: Opener, small: Path, axe: str, scheme: str) -> None:
    page = drawn(opened(small, color_scheme=scheme))
    assert violations(page, axe) == []
    page.locator("#ranks-heat").get_by_text("Without waiting").click()
    page.locator("#ranks-heat td").last.focus()
    assert violations(page, axe) == []
