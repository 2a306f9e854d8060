"""Takes the screenshots in ``docs/images``: the report and the tab, on recorded traces.

Check them before committing. Run: ``python docs/pictures.py``; it needs Chromium.
"""

import gzip
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from profkit.api import render, study
from tests.tensorboard.server import serving

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = Path(__file__).parent / "images"
TRACES: Final = ROOT / "traces"
SHOWN: Final = "starved_loader"
OTHERS: Final = ("starved_loader_cured", "zeroed_gradients", "zeroed_gradients_cured")
"""The other recordings in the tab's list."""
RECORDED_AT: Final = b"/home/user/profkit"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_MS: Final = 120_000


def main() -> None:
    """Take all screenshots.

    Raises:
        SystemExit: There is no browser.
    """
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit(f"No browser found on PATH: {', '.join(BROWSERS)}.")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        report_screenshots(browser, Path(folder))
        tab_screenshot(browser, Path(folder))
        browser.close()


def report_screenshots(browser: Browser, folder: Path) -> None:
    """The head of the page in the light theme, and its timeline in the dark one."""
    (trace,) = (TRACES / SHOWN).glob("*.pt.trace.json.gz")
    here = folder / trace.name
    # The recorded paths are replaced by those of this checkout, so that source lines are found.
    text = gzip.decompress(trace.read_bytes()).replace(RECORDED_AT, str(ROOT).encode())
    here.write_bytes(gzip.compress(text))
    studied = study(here)
    source = replace(studied.report.source, path=str(trace.relative_to(ROOT)))
    options: dict[str, Any] = {"recording": studied.recording, "base": str(ROOT)}
    path = folder / "report.html"
    path.write_bytes(render(replace(studied.report, source=source), "html", **options))
    page = opened(browser, path.as_uri(), 1180, 1180, color_scheme="light")
    finding = page.locator("#finding-1")
    if finding.get_attribute("open") is None:
        finding.locator("> summary").click()
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    page.screenshot(path=IMAGES / "report.png")

    page = opened(browser, path.as_uri(), 1180, 760, color_scheme="dark")
    expect(page.locator("#timeline-view")).to_have_attribute("data-resolution", "0")
    page.locator("#timeline").evaluate("(section) => section.scrollIntoView()")
    expect(page.locator("#timeline-range")).not_to_be_empty()
    page.screenshot(path=IMAGES / "timeline.png")


def tab_screenshot(browser: Browser, folder: Path) -> None:
    """TensorBoard with the tab, beside that of torch-tb-profiler."""
    logdir = folder / "traces"
    for name in (*OTHERS, SHOWN):
        shutil.copytree(TRACES / name, logdir / name)
    with serving(logdir) as server:
        page = opened(browser, f"{server.address}#profkit", 1240, 780, color_scheme="light")
        frame = page.frame_locator("iframe[src*='name=profkit']")
        for name in (*OTHERS, SHOWN):
            listed = frame.locator("#list section").filter(
                has=frame.get_by_role("heading", name=name, exact=True)
            )
            expect(listed).to_contain_text(re.compile(r"\d findings?"))
            listed.get_by_role("link").first.click()
        report = frame.frame_locator("iframe.page")
        expect(report.locator("header.top")).to_be_hidden()
        expect(report.locator("#overview .breakdown")).to_be_visible()
        page.mouse.move(0, 0)
        page.screenshot(path=IMAGES / "tensorboard.png")


def opened(browser: Browser, address: str, width: int, height: int, **settings: Any) -> Page:  # noqa: ANN401  (playwright's)
    """A page in a new window, without animations."""
    size: Any = {"width": width, "height": height}
    context = browser.new_context(viewport=size, reduced_motion="reduce", **settings)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto(address)
    return page


if __name__ == "__main__":
    main()
