"""Takes the screenshots in ``docs/images``: the report, the tab and the gallery, on recordings.

Check them before committing. Run: ``python docs/pictures.py``; it needs Chromium.
"""

import contextlib
import gzip
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from profkit.cli.main import group
from profkit.testing import SnapshotBuilder
from tests.docs.blocks import all_blocks
from tests.tensorboard.server import serving

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = Path(__file__).parent / "images"
TRACES: Final = ROOT / "traces"
SHOWN_IN_TAB: Final = "starved_loader"
OTHERS: Final = ("starved_loader_cured", "zeroed_gradients", "zeroed_gradients_cured")
"""The other recordings in the tab's list."""
RECORDED_AT: Final = b"/home/user/profkit"
RECORDINGS: Final = Path(__file__).parent / "recordings"
PROGRAM_PAGES: Final = ("docs/guide.md", "docs/tutorials/many-ranks.md")
COMPILED_PROGRAM: Final = "examples/gpu/recompiles.py"
GPU_TRACE: Final = ROOT / "tests" / "engine" / "h100_unfused_optimizer.pt.trace.json.gz"
GIB: Final = 1 << 30
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
        gallery_screenshots(browser, Path(folder))
        browser.close()


def report_screenshots(browser: Browser, folder: Path) -> None:
    """The head of the page in the light theme, and its timeline in the dark one."""
    path = write_page(place_recording("starved", folder), folder)
    head_screenshot(browser, path, IMAGES / "report.png")

    page = opened(browser, path.as_uri(), 1180, 760, color_scheme="dark")
    expect(page.locator("#timeline-view")).to_have_attribute("data-resolution", "0")
    page.locator("#timeline").evaluate("(section) => section.scrollIntoView()")
    expect(page.locator("#timeline-range")).not_to_be_empty()
    page.screenshot(path=IMAGES / "timeline.png")


def tab_screenshot(browser: Browser, folder: Path) -> None:
    """TensorBoard with the tab, beside that of torch-tb-profiler."""
    logdir = folder / "logdir"
    for name in (*OTHERS, SHOWN_IN_TAB):
        shutil.copytree(TRACES / name, logdir / name)
    with serving(logdir) as server:
        page = opened(browser, f"{server.address}#profkit", 1240, 780, color_scheme="light")
        frame = page.frame_locator("iframe[src*='name=profkit']")
        for name in (*OTHERS, SHOWN_IN_TAB):
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


def gallery_screenshots(browser: Browser, folder: Path) -> None:
    """The heads of the reports on one problem each."""
    recordings = {name: place_recording(name, folder) for name in ("leak", "compile", "ranks")}
    recordings["slow-step"] = Path(shutil.copy(GPU_TRACE, folder))
    recordings["out-of-memory"] = fill_device().write(folder / "oom.pickle")
    for name, recording in recordings.items():
        head_screenshot(browser, write_page(recording, folder), IMAGES / f"gallery-{name}.png")


def place_recording(name: str, folder: Path) -> Path:
    """Copy a recording of the pages, with its paths replaced by those of its program's copy."""
    (folder / COMPILED_PROGRAM).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / COMPILED_PROGRAM, folder / COMPILED_PROGRAM)
    for block in (block for page in PROGRAM_PAGES for block in all_blocks(page) if block.title):
        (folder / block.title).write_text(block.text)

    copy = folder / "traces" / name
    copy.mkdir(parents=True)
    for file in (RECORDINGS / name).iterdir():
        text = gzip.decompress(file.read_bytes()).replace(RECORDED_AT, str(folder).encode())
        (copy / file.name).write_bytes(gzip.compress(text))
    return copy


def write_page(recording: Path, folder: Path) -> Path:
    """Write the report on a recording as a page, whose paths are relative to the folder."""
    path = folder / f"{recording.name}.html"
    arguments = ["analyze", str(recording), "--format", "html", "-o", str(path)]
    with contextlib.chdir(folder):
        group.main(arguments, standalone_mode=False)
    return path


def head_screenshot(browser: Browser, path: Path, image: Path) -> None:
    """Take a picture of a page's head, with its first finding open."""
    page = opened(browser, path.as_uri(), 1180, 1180, color_scheme="light")
    finding = page.locator("#finding-1")
    if finding.get_attribute("open") is None:
        finding.locator("> summary").click()
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    page.screenshot(path=image)


def fill_device() -> SnapshotBuilder:
    """Return a snapshot of a GPU that activations fill: there is no GPU to record one."""
    builder = SnapshotBuilder(total_bytes=24 * GIB)
    layers = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
    with builder.frame("train.py", 31, "main"):
        with builder.frame(layers, 927, "_apply"):
            builder.alloc(3 * GIB)
        with builder.frame(layers, 1775, "_call_impl"):
            for layer in range(12):
                with builder.frame("model.py", 48, "attention"):
                    builder.alloc(GIB)
                with builder.frame("model.py", 57, "mlp"):
                    builder.alloc(GIB // 2 + layer * 1024)
        with builder.frame("train.py", 36, "loss"):
            builder.alloc_or_none(4 * GIB)
    return builder


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
