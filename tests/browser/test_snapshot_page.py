"""The page of a snapshot in a browser: a selected span of time, and the segments."""

import pickle
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Position, expect

from profkit.api import render, study
from profkit.units import format_bytes
from tests.browser.pages import Fingers, Opener, violations
from tests.present.test_live_groups import live_between, program

CHART, SPAN, MAP = "#memory-0", "#memory .selected-span", ".segment-map"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(1).write(tmp_path_factory.mktemp("snapshot") / "s.pickle")


@pytest.fixture(scope="module")
def written(snapshot: Path) -> Path:
    studied = study(snapshot)
    path = snapshot.with_name("page.html")
    path.write_bytes(render(studied.report, "html", recording=studied.recording))
    assert path.stat().st_size < 400_000
    return path


def selected(page: Page) -> tuple[int, int, str]:
    """Return the selected range in microseconds and its size, as the page says."""
    expect(page.locator(SPAN)).to_contain_text("Selected: ")
    text = page.locator(SPAN).inner_text()
    match = re.search(r"from ([\d.]+) (\S+) to ([\d.]+) (\S+)\. Their.* up to (.*?):", text)
    assert match is not None, text
    units = {"ns": 0.001, "µs": 1.0, "ms": 1000.0}
    first, last = (float(match[i]) * units[match[i + 1]] for i in (1, 3))
    return round(first), round(last), match[5]


def test_a_selected_span_limits_the_flame_graph_to_what_was_live(
    opened: Opener, snapshot: Path, written: Path, axe: str
) -> None:
    raw = pickle.loads(snapshot.read_bytes())  # noqa: S301  (written here)
    page = opened(written, has_touch=True, reduced_motion="reduce")
    total = page.locator("#flame-selected")
    expect(total).to_contain_text("total")
    at_peak = total.inner_text()
    chart = page.locator(CHART)
    chart.focus()
    for key in ["ArrowRight"] * 20 + ["Shift+ArrowRight"] * 30:
        page.keyboard.press(key)
    # The cursor begins before the first moment.
    sizes = live_between(raw, 19, 49)
    expect(page.locator(SPAN)).to_contain_text(f"Selected: {len(sizes)} blocks")
    expect(page.locator(SPAN)).to_contain_text(f"add up to {format_bytes(sum(sizes))}:")
    expect(total).to_have_text(f"{format_bytes(sum(sizes))} total.")
    expect(page.locator("#flame-span")).to_contain_text(f"Selected: {len(sizes)} blocks")
    expect(page.locator(".flame-table:visible")).to_have_count(0)
    page.locator("label", has_text="by stack").click()
    expect(total).to_have_text(f"{format_bytes(sum(sizes))} total.")
    chart.press("Escape")
    expect(total).to_have_text(at_peak)
    expect(page.locator(SPAN)).to_be_hidden()

    # With the mouse, and with a finger.
    times = [
        entry["time_us"] - raw["device_traces"][0][0]["time_us"]
        for entry in raw["device_traces"][0]
    ]
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60, steps=3)
    page.mouse.up()
    by_mouse = selected(page)
    fingers = Fingers(page, CHART)
    fingers.go((0.2,), (0.5,))
    fingers.at("touchEnd")
    expect(page.locator(SPAN)).not_to_contain_text(by_mouse[2])
    for first, last, size in (by_mouse, selected(page)):
        # A moment is after the entry of its time.
        places = (times.index(first) + 1, times.index(last) + 1)
        assert size == format_bytes(sum(live_between(raw, *places)))
    page.locator("#flame-span button").click()
    expect(total).to_have_text(at_peak)
    assert violations(page, axe) == []


def test_the_segments_show_every_block(opened: Opener, snapshot: Path, written: Path) -> None:
    raw = pickle.loads(snapshot.read_bytes())  # noqa: S301  (written here)
    segments = sorted(raw["segments"], key=lambda segment: segment["address"])
    blocks = [block for segment in segments for block in segment["blocks"]]
    page = opened(written, reduced_motion="reduce")
    view, about = page.locator(MAP), page.locator(".segments .flame-selected")
    expect(view).to_have_attribute("data-drawn", re.compile(r"\d"))
    free = sum(block["size"] for block in blocks if block["state"] == "inactive")
    legend = page.locator(".segments .styles")
    expect(legend).to_contain_text(f"free {format_bytes(free)}")
    view.focus()

    for block in blocks[:12]:
        page.keyboard.press("ArrowRight")
        is_free = block["state"] == "inactive"
        what = "free" if is_free else ", unknown use"
        expect(about).to_contain_text(f"{format_bytes(block['size'])}{' ' * is_free}{what}")

    page.keyboard.press("End")
    expect(about).to_contain_text(f"in segment {len(segments)} of {len(segments)}")
    page.keyboard.press("Enter")
    expect(legend).not_to_contain_text(f"free {format_bytes(free)}")
    page.keyboard.press("Escape")
    expect(legend).to_contain_text(f"free {format_bytes(free)}")
    page.locator(".segments label", has_text="by age").click()
    expect(legend).to_contain_text("allocated before recording")
    # A block of the first segment is at its place on the first line.
    page.keyboard.press("Home")
    canvas, corner = page.locator(f"{MAP} canvas"), Position(x=1, y=5)
    canvas.hover(position=corner)
    expect(page.locator(f"{MAP} .slice-tip")).to_contain_text(f"segment 1 of {len(segments)}")
    canvas.click(position=corner)
    expect(about).to_contain_text(format_bytes(blocks[0]["size"]))
