"""The tab in a browser, on a TensorBoard server, with only the loopback interface."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Frame, FrameLocator, Page, expect

from profkit.testing import TraceBuilder
from profkit.units import format_ns
from tests.browser.pages import Opener, violations
from tests.tensorboard.recordings import GEMM_NS, STEPS, build_gpu_training, write_gpu_training
from tests.tensorboard.server import TensorBoard, serving

ROOT = Path(__file__).parents[2]
TAB = "data/plugin/profkit/index.html"
HOSTILE = "<img src=x onerror=document.title='taken'>"
SECTIONS = {
    "Overview": "Step time",
    "Findings": "DAT001",
    "Timeline": "events. Events too short",
    "What if": "Critical path",
    "Critical path": "operators",
    "Steps": "ProfilerStep#",
    "Flame graphs": "Click a box to zoom",
    "Memory": "Allocations by operator",
    "Roofline": "FLOPs per byte",
    "Tables": "Conv2d_0",
    "Recording": "Skipped checks",
    "Glossary": "host-device",
}
"""Sections of the report on a recorded trace, and a text in each."""
OWN_VIEWS = {"Compare": "Figures"}
"""Views of the tab itself, and a text in each."""
OCCUPANCY = "est. achieved occupancy %"
READY_MS = 60_000


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    for name in ("starved_loader", "starved_loader_cured"):
        shutil.copytree(ROOT / "traces" / name, folder / name)
    write_gpu_training(folder / "gpu")
    b = TraceBuilder()

    for device_ns, occupancy in ((30_000, 60), (10_000, 20)):
        figures = {"blocks per SM": 2.5, "warps per SM": 20.0, OCCUPANCY: occupancy}
        with b.step():
            ident = b.call("LaunchKernel", 50_000)
            b.kernel("ampere_s16816gemm", device_ns, correlation=ident, **figures)

    (folder / "filled").mkdir()
    b.write(folder / "filled" / "host_8.17.pt.trace.json")
    (folder / "ranks").mkdir()
    for rank, reduce_ns in enumerate((100_000, 300_000)):
        trace = build_gpu_training(rank=rank, reduce_ns=reduce_ns)
        trace.write(folder / "ranks" / f"host_{rank}_rank{rank}.17.pt.trace.json")
    (folder / HOSTILE).mkdir()
    (folder / HOSTILE / "bad.pt.trace.json").write_text("{broken")
    return folder


@pytest.fixture(scope="module")
def server(logdir: Path, browser: Browser) -> Iterator[TensorBoard]:
    assert browser.is_connected()  # no server is started without a browser
    with serving(logdir) as started:
        yield started


def tab(opened: Opener, server: TensorBoard, run: str, **settings: object) -> Page:
    """Return the tab alone, with a recording of a run selected and analyzed."""
    page = opened(server.address + TAB, allowed=(server.address,), **settings)
    page.set_default_timeout(READY_MS)
    section = page.locator("#list section").filter(
        has=page.get_by_role("heading", name=run, exact=True)
    )
    link = section.get_by_role("link").first
    expect(link).to_be_visible()
    link.dispatch_event("click")  # the list may grow, and move the link from under a pointer
    expect(page.locator("main h1")).to_contain_text(f"{run} / ")
    expect(report_of(page).locator("h1")).to_be_visible(timeout=READY_MS)
    return page


def report_of(page: Page) -> FrameLocator:
    """Return the report in the tab's frame."""
    return page.frame_locator("iframe.report")


def show(page: Page, view: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("link", name=view, exact=True).click()


def test_the_tab_shows_every_section_of_the_report(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader")
    links = page.get_by_role("navigation", name="Views").get_by_role("link")
    assert links.all_inner_texts() == [*SECTIONS, *OWN_VIEWS]

    report = report_of(page)
    expect(report.locator("header.top")).to_be_hidden()
    for view, text in SECTIONS.items():
        show(page, view)
        section = report.locator("main > section").filter(
            has=page.get_by_role("heading", name=view, exact=True, level=2)
        )
        expect(section).to_contain_text(text)
        # The overview is the head of the page, whose heading is for screen readers alone.
        first = section.locator(".tiles" if view == "Overview" else "h2")
        expect(first).to_be_in_viewport()
        expect(page.locator(".views a[aria-current]")).to_have_text(view)
    for view, text in OWN_VIEWS.items():
        show(page, view)
        expect(page.locator("#view")).to_contain_text(text, timeout=READY_MS)
        expect(page.locator("iframe.report")).to_be_hidden()


def test_a_link_leads_to_a_section_and_scrolling_updates_the_address(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "starved_loader")
    show(page, "Timeline")
    expect(report_of(page).locator("#timeline-view")).to_have_attribute("data-resolution", "0")
    page.reload()
    expect(report_of(page).locator("#timeline h2")).to_be_in_viewport(timeout=READY_MS)
    report_of(page).locator("#tables").evaluate(
        "(section) => { section.querySelector('details').open = true; section.scrollIntoView(); }"
    )
    expect(page).to_have_url(re.compile("/tables$"))
    expect(page.locator(".views a[aria-current]")).to_have_text("Tables")


def test_a_finding_links_to_the_timeline_in_the_frame(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader")
    show(page, "Findings")
    report_of(page).get_by_role("button", name="Show on the timeline").first.click()
    expect(report_of(page).locator("#timeline-view")).to_be_in_viewport()


def test_a_gpu_trace_shows_kernels_modules_and_errors_of_the_other_tab(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "gpu")
    show(page, "Tables")
    kernels = report_of(page).locator("#kernels")
    row = kernels.get_by_role("row").filter(has_text="gemm")
    expect(row).to_contain_text(format_ns(STEPS * GEMM_NS))
    for heading in ("Shortest", "Longest"):
        expect(kernels.get_by_role("columnheader", name=heading)).to_have_count(1)
    modules = report_of(page).locator("#modules")
    expect(modules.get_by_role("row").filter(has_text="Linear_0")).to_contain_text(
        format_ns(STEPS * GEMM_NS)
    )
    show(page, "PyTorch Profiler")
    expect(page.locator("#view")).to_contain_text("Both are 0: the plugin expects the event")


@pytest.mark.slow
def test_two_recordings_are_compared_in_tables_that_sort_and_search(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "starved_loader_cured")
    show(page, "Compare")
    page.get_by_label("Before").select_option(
        page.locator("option").filter(has_text="starved_loader /").first.get_attribute("value")
    )
    finding = page.get_by_role("row").filter(has_text="starved-by-loader")
    expect(finding).to_contain_text("fixed", timeout=READY_MS)
    figures = page.locator("#view figure").filter(
        has=page.get_by_role("heading", name="Figures", exact=True)
    )
    names = figures.locator("tbody td:first-child")
    figures.get_by_role("button", name="Figure").click()

    assert names.all_text_contents() == sorted(names.all_text_contents(), key=str.lower)

    expect(figures.locator("thead th").first).to_have_attribute("aria-sort", "ascending")
    figures.get_by_role("searchbox", name="Search Figures").fill("step")
    expect(figures.locator("[role=status]")).to_contain_text(" of ")
    assert all("step" in name for name in names.all_text_contents())


def test_a_run_of_several_ranks_shows_them_together(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "ranks")
    show(page, "Ranks")
    job = page.frame_locator("iframe.job")
    expect(job.locator("#ranks h2")).to_be_in_viewport(timeout=READY_MS)
    expect(job.locator("#ranks-heat td").first).to_be_visible()
    expect(job.locator("#ranks .lane-name")).to_have_count(2)
    expect(page.locator("iframe.report")).to_be_hidden()
    show(page, "Overview")
    expect(page.locator("iframe.job")).to_be_hidden()


def test_the_report_is_in_a_sandboxed_frame(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader")
    assert page.locator("iframe.report").get_attribute("sandbox") == "allow-scripts"


def test_a_broken_file_with_a_hostile_name_shows_its_error_and_runs_nothing(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "starved_loader")
    page.get_by_role("searchbox", name="Search recordings").fill("onerror")
    page.locator("#list a").first.click()
    expect(page.get_by_role("alert")).to_contain_text("bad.pt.trace.json", timeout=READY_MS)
    assert page.title() != "taken"
    assert page.locator("img").count() == 0


def test_the_keyboard_reaches_every_view(opened: Opener, server: TensorBoard) -> None:
    page = tab(opened, server, "starved_loader")
    page.locator("main").focus()
    for _ in range(len(SECTIONS) + len(OWN_VIEWS) + 4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Tables":
            break
    page.keyboard.press("Enter")
    expect(report_of(page).locator("#tables h2")).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(
    opened: Opener, server: TensorBoard, axe: str, scheme: str
) -> None:
    page = tab(opened, server, "ranks", color_scheme=scheme)
    assert violations(page, axe, frames=False) == []
    for view, text in {**OWN_VIEWS, "PyTorch Profiler": "Shown there"}.items():
        show(page, view)
        expect(page.locator("#view")).to_contain_text(text, timeout=READY_MS)
        assert violations(page, axe) == [], view


@pytest.mark.slow
def test_an_empty_folder_shows_how_to_record(
    opened: Opener, browser: Browser, tmp_path: Path
) -> None:
    assert browser.is_connected()
    with serving(tmp_path) as empty:
        page = opened(empty.address + TAB, allowed=(empty.address,))
        expect(page.locator("h1")).to_have_text("No recordings")
        expect(page.locator("main")).to_contain_text("profkit run --dir LOGDIR train.py")
        write_gpu_training(tmp_path / "train")
        expect(report_of(page).locator("h1")).to_be_visible(timeout=READY_MS)


def test_the_tab_has_tensorboards_theme_and_makes_no_other_request(
    browser: Browser, server: TensorBoard
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{server.address}#profkit")
    frame = page.frame_locator("iframe[src*='name=profkit']")
    # The newest run, which is shown first, cannot be read.
    run = frame.locator("#list section", has_text="starved_loader_cured")
    run.get_by_role("link").first.dispatch_event("click", timeout=READY_MS)
    report = frame.frame_locator("iframe.report")
    expect(report.locator("h1")).to_be_visible(timeout=READY_MS)
    for theme, action in (("dark", "add"), ("light", "remove")):
        page.evaluate(f"document.body.classList.{action}('dark-mode')")
        expect(frame.locator("html")).to_have_attribute("data-theme", theme)
        expect(report.locator("html")).to_have_attribute("data-theme", theme)
    context.close()

    expected = (server.address, "data:", "blob:")
    assert [url for url in requests if not url.startswith(expected)] == []


def open_existing_trace_view(page: Page, server: TensorBoard) -> Frame:
    """Return the trace view of torch-tb-profiler with a trace, in a frame as on its own page."""
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
    page.wait_for_timeout(1_000)  # it registers its elements after loading, without an event
    page.evaluate(
        """async (address) => {
        const data = await (await fetch(address)).text();
        document.querySelector('iframe').contentWindow.postMessage({name: 'gpu', data}, '*');
    }""",
        f"{plugin}trace?{urlencode({'run': 'gpu', 'worker': worker, 'span': span})}",
    )
    frame = page.frame("viewer")
    assert frame is not None

    return frame


@pytest.mark.slow
def test_the_existing_trace_view_draws_the_trace_if_its_script_is_available(
    browser: Browser, server: TensorBoard, web_components: bytes
) -> None:
    page = browser.new_page()
    page.route(
        "https://cdnjs.cloudflare.com/**/webcomponents.min.js",
        lambda route: route.fulfill(body=web_components, content_type="text/javascript"),
    )
    frame = open_existing_trace_view(page, server)
    expect(frame.locator("body")).to_contain_text("Process 1000", timeout=60_000)
    expect(frame.locator("body")).not_to_contain_text("Import error")
    page.close()


@pytest.mark.slow
def test_the_existing_trace_view_is_empty_without_internet_access(
    browser: Browser, server: TensorBoard
) -> None:
    page = browser.new_page()
    page.route("https://**", lambda route: route.abort())
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    frame = open_existing_trace_view(page, server)
    page.wait_for_timeout(1_000)
    assert frame.locator("body").inner_text().strip() == ""
    assert errors == ["tr is not defined"]
    documented = (ROOT / "docs" / "tensorboard.md").read_text(encoding="utf-8")
    assert "script from the internet" in documented
    page.close()


def test_kernels_have_blocks_occupancy_and_tensor_cores(
    opened: Opener, server: TensorBoard
) -> None:
    page = tab(opened, server, "filled")
    show(page, "Tables")
    kernels = report_of(page).locator("#kernels")
    for heading in ("Blocks", "Occupancy", "Tensor cores"):
        expect(kernels.get_by_role("columnheader", name=heading)).to_be_visible()
    row = kernels.get_by_role("row").filter(has_text="ampere_s16816gemm")
    for figure in ("2.50", "50%", "yes"):
        expect(row.get_by_role("cell", name=figure, exact=True)).to_be_visible()
    devices = report_of(page).locator("#devices")
    expect(devices.get_by_role("columnheader", name="Tensor cores")).to_be_visible()
