"""TensorBoard in a real browser, on a real server, with nothing but the loopback interface."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Frame, Page, expect

from profkit.testing import TraceBuilder
from profkit.units import format_ns
from tests.browser.pages import Opener, violations
from tests.tensorboard.recordings import GEMM_NS, STEPS, gpu_training, write_gpu_training
from tests.tensorboard.server import TensorBoard, serving

ROOT = Path(__file__).parents[2]
TAB = "data/plugin/profkit/index.html"
HOSTILE = "<img src=x onerror=document.title='taken'>"
VIEWS = {
    "Findings": "loop waits for the data loader",
    "Operators": "aten::conv2d",
    "Kernels": "No device worked in this recording.",
    "Memory": "Allocations by operator",
    "Modules": "Conv2d_0",
    "Ranks": "Ranks",
    "Compare": "Figures",
    "Overview": "Step by step",
}
"""Views of the recorded trace, and something that each says."""
FILL = "est. achieved occupancy %"
FRAMED = {"Timeline", "Report"}
"""Those that show the page of the report."""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    for name in ("starved_loader", "starved_loader_cured"):
        shutil.copytree(ROOT / "traces" / name, folder / name)
    write_gpu_training(folder / "gpu")
    b = TraceBuilder()
    for device_ns, occupancy in ((30_000, 60), (10_000, 20)):
        figures = {"blocks per SM": 2.5, "warps per SM": 20.0, FILL: occupancy}
        with b.step():
            ident = b.call("LaunchKernel", 50_000)
            b.kernel("ampere_s16816gemm", device_ns, correlation=ident, **figures)
    (folder / "filled").mkdir()
    b.write(folder / "filled" / "host_8.17.pt.trace.json")
    (folder / "ranks").mkdir()
    for rank, reduce_ns in enumerate((100_000, 300_000)):
        trace = gpu_training(rank=rank, reduce_ns=reduce_ns)
        trace.write(folder / "ranks" / f"host_{rank}_rank{rank}.17.pt.trace.json")
    (folder / HOSTILE).mkdir()
    (folder / HOSTILE / "bad.pt.trace.json").write_text("{broken")
    return folder


@pytest.fixture(scope="module")
def server(logdir: Path, browser: Browser) -> Iterator[TensorBoard]:
    assert browser.is_connected()  # no server is started for a browser that is not there
    with serving(logdir) as started:
        yield started


def tab(opened: Opener, server: TensorBoard, run: str, **settings: object) -> Page:
    """The tab by itself, with a recording of some run chosen and analyzed."""
    page = opened(server.address + TAB, allowed=(server.address,), **settings)
    page.set_default_timeout(60_000)
    section = page.locator("#list section").filter(
        has=page.get_by_role("heading", name=run, exact=True)
    )
    section.get_by_role("link").first.click()
    expect(page.locator("main h1")).to_contain_text(
        re.compile("step takes|is long"), timeout=60_000
    )
    return page


def show(page: Page, view: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("link", name=view, exact=True).click()


def test_every_view_of_the_tab_shows_what_it_is_of(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader")
    for view, said in VIEWS.items():
        show(page, view)
        expect(page.locator("#view")).to_contain_text(
            re.compile(re.escape(said), re.IGNORECASE), timeout=60_000
        )
    links = page.get_by_role("navigation", name="Views").get_by_role("link")
    assert {*links.all_inner_texts()} == VIEWS.keys() | FRAMED
    show(page, "Timeline")
    timeline = page.frame_locator("iframe.page").locator("#timeline-view")
    expect(timeline).to_have_attribute("data-resolution", "0")
    expect(timeline).to_be_in_viewport()


def test_a_gpu_trace_shows_its_kernels_its_modules_and_what_the_other_tab_gets_wrong(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "gpu")
    expect(page.locator("#view")).to_contain_text("Both are 0: it looks for calls of the category")
    show(page, "Kernels")
    row = page.get_by_role("row").filter(has_text="gemm")
    expect(row).to_contain_text(format_ns(STEPS * GEMM_NS))
    show(page, "Modules")
    expect(page.get_by_role("row").filter(has_text="Linear_0")).to_contain_text(
        format_ns(STEPS * GEMM_NS)
    )


def test_a_table_sorts_both_ways_and_searches(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader")
    show(page, "Operators")
    names = page.locator("#view tbody th")
    by_time = names.all_text_contents()
    page.get_by_role("button", name="operator").click()
    expect(page.locator("#view thead th").first).to_have_attribute("aria-sort", "ascending")
    assert names.all_text_contents() == sorted(by_time, key=str.lower)
    page.get_by_role("button", name="host, in all").click()
    assert names.all_text_contents() == by_time
    page.get_by_role("searchbox", name="Search operators").fill("conv2d")
    expect(names).not_to_have_count(len(by_time))
    assert all("conv2d" in name for name in names.all_text_contents())


def test_two_recordings_are_compared(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader_cured")
    show(page, "Compare")
    page.get_by_label("Before").select_option(
        page.locator("option").filter(has_text="starved_loader /").first.get_attribute("value")
    )
    finding = page.get_by_role("row").filter(has_text="starved-by-loader")
    expect(finding).to_contain_text("fixed", timeout=60_000)


def test_ranks_stand_side_by_side(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "ranks")
    show(page, "Ranks")
    for rank, reduce_ns in enumerate((100_000, 300_000)):
        row = page.locator("#view .table").get_by_role("row").filter(has_text=f"rank {rank}")
        expect(row).to_contain_text(format_ns(STEPS * reduce_ns), timeout=60_000)


def test_the_whole_report_is_drawn_in_a_frame_that_may_do_nothing_else(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "starved_loader")
    show(page, "Report")
    frame = page.frame_locator("iframe.page")
    expect(frame.locator("h1")).to_contain_text("Step time is")
    assert page.locator("iframe.page").get_attribute("sandbox") == "allow-scripts"


def test_a_broken_file_with_a_hostile_name_says_what_is_wrong_and_does_nothing(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "starved_loader")
    page.get_by_role("searchbox", name="Search recordings").fill("onerror")
    page.locator("#list a").first.click()
    expect(page.get_by_role("alert")).to_contain_text("bad.pt.trace.json", timeout=60_000)
    assert page.title() != "taken"
    assert page.locator("img").count() == 0


def test_the_list_searches_and_the_keyboard_reaches_every_view(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "starved_loader")
    page.locator("main").focus()
    for _ in range(len(VIEWS) + 2):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Operators":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#view")).to_contain_text("aten::conv2d")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_stands_in_the_way_of_anyone(
    opened: Opener, server: TensorBoard, axe: str, scheme: str
) -> None:
    page = tab(opened, server, "starved_loader", color_scheme=scheme)
    for view, said in VIEWS.items():
        show(page, view)
        expect(page.locator("#view")).to_contain_text(re.compile(re.escape(said), re.IGNORECASE))
        assert violations(page, axe) == [], view


def test_an_empty_folder_says_how_to_record(
    opened: Opener, browser: Browser, tmp_path: Path
) -> None:
    assert browser.is_connected()
    with serving(tmp_path) as empty:
        page = opened(empty.address + TAB, allowed=(empty.address,))
        expect(page.locator("h1")).to_have_text("There is no recording yet")
        expect(page.locator("main")).to_contain_text("profkit run --dir LOGDIR train.py")
        write_gpu_training(tmp_path / "train")
        expect(page.locator("main h1")).to_contain_text("step takes", timeout=60_000)


def test_tensorboard_shows_the_tab_in_its_own_colours_and_without_the_internet(
    browser: Browser, server: TensorBoard
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{server.address}#profkit")
    frame = page.frame_locator("iframe[src*='name=profkit']")
    expect(frame.locator("main h1")).to_contain_text("step takes", timeout=60_000)
    page.evaluate("document.body.classList.add('dark-mode')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    page.evaluate("document.body.classList.remove('dark-mode')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")
    context.close()
    assert [url for url in asked if not url.startswith((server.address, "data:", "blob:"))] == []


def existing_trace_view(page: Page, server: TensorBoard) -> Frame:
    """The existing plugin's trace view with a trace, in a frame, as its own page has it."""
    server.loaded("gpu")
    (worker,) = server.ask("workers", run="gpu", view="Overview")
    (span,) = server.ask("spans", run="gpu", worker=worker)
    plugin = f"{server.address}data/plugin/pytorch_profiler/"
    page.goto(f"{plugin}index.js")
    page.evaluate("""() => new Promise((loaded) => {
        const frame = document.createElement('iframe');
        Object.assign(frame, {name: 'viewer', width: 1200, height: 800, onload: loaded});
        frame.src = 'trace_embedding.html';
        document.body.replaceChildren(frame);
    })""")
    page.wait_for_timeout(1_000)  # it registers its elements after it has loaded, and tells nobody
    page.evaluate("""async (address) => {
        const data = await (await fetch(address)).text();
        document.querySelector('iframe').contentWindow.postMessage({name: 'gpu', data}, '*');
    }""", f"{plugin}trace?{urlencode({'run': 'gpu', 'worker': worker, 'span': span})}")  # fmt: skip
    frame = page.frame("viewer")
    assert frame is not None
    return frame


def test_the_existing_trace_view_draws_the_trace_where_its_script_can_be_had(
    browser: Browser, server: TensorBoard, web_components: bytes
) -> None:
    page = browser.new_page()
    page.route(
        "https://cdnjs.cloudflare.com/**/webcomponents.min.js",
        lambda route: route.fulfill(body=web_components, content_type="text/javascript"),
    )
    frame = existing_trace_view(page, server)
    expect(frame.locator("body")).to_contain_text("Process 1000", timeout=60_000)
    expect(frame.locator("body")).not_to_contain_text("Import error")
    page.close()


def test_the_existing_trace_view_stays_empty_without_the_internet_as_the_pages_say(
    browser: Browser, server: TensorBoard
) -> None:
    page = browser.new_page()
    page.route("https://**", lambda route: route.abort())
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    frame = existing_trace_view(page, server)
    page.wait_for_timeout(1_000)
    assert frame.locator("body").inner_text().strip() == ""
    assert errors == ["tr is not defined"]
    said = (ROOT / "docs" / "tensorboard.md").read_text(encoding="utf-8")
    assert "script from the internet" in said
    page.close()


def test_kernels_come_with_how_much_of_the_device_they_use(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "filled")
    show(page, "Kernels")
    for heading in ("blocks per SM", "est. occupancy", "tensor cores"):
        expect(page.get_by_role("columnheader", name=heading)).to_be_visible()
    row = page.get_by_role("row", name="ampere_s16816gemm")
    for told in ("2.50", "50%", "yes"):
        expect(row.get_by_role("cell", name=told, exact=True)).to_be_visible()
    show(page, "Overview")
    expect(page.get_by_role("columnheader", name="tensor cores, at least")).to_be_visible()
