"""Frames of the HTML timeline: how long each takes while a large recording is panned and scrolled.

A synthetic trace of a GPU program is repeated to a number of events, as ``benchmarks.render`` does,
and its page is opened in headless Chromium, which draws without a GPU. At several zooms the
timeline then follows the pointer, to the sides and down, and ``requestAnimationFrame`` takes the
time from frame to frame: 60 frames per second are 16.7 ms each. Other work on the machine delays
frames too, as the first row shows, in which nothing moves; the time that the page's script draws
in each frame is therefore measured as well.

Run: ``python -m benchmarks.frames [--events 1000000] [--width 1400] [--page FILE]``
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from playwright.sync_api import sync_playwright

from benchmarks.figures import compared
from benchmarks.render import browser_path, build_gpu_training, written
from profkit.api import render, study

SHARES: Final = (0.0, 0.9, 0.5, 0.1, 0.02, 0.001)
"""Parts of the recording that are visible; 0 for a timeline that does not move."""
N_FRAMES: Final = 240
HEIGHT: Final = 1000
TARGET_MS: Final = 1000 / 60
TARGET_PERCENT: Final = 95
_PAN: Final = """([share, count]) => new Promise((resolve) => {
    const { startNs, endNs } = profkit.data('timeline').timeline;
    const canvas = document.querySelector('#timeline-view .slices');
    const lanes = document.querySelector('#timeline-view .lanes');
    canvas.setPointerCapture = () => {};
    const span = (endNs - startNs) * (share || 1);
    const middle = startNs + (endNs - startNs) / 2;
    profkit.showRange(middle - span / 2, middle + span / 2, '');
    const box = lanes.getBoundingClientRect();
    const send = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, {
        pointerId: 1, pointerType: 'mouse', button: 0, buttons: 1, bubbles: true,
        clientX: box.left + x, clientY: box.top + y}));
    const times = [];
    const drawing = [];
    const { drawSlices } = profkit.lanes;
    profkit.lanes.drawSlices = (...all) => {
        const began = performance.now();
        drawSlices(...all);
        drawing.push(performance.now() - began);
    };
    let before = 0;
    const step = (now) => {
        if (before) times.push(now - before);
        before = now;
        if (times.length === count) {
            send('pointerup', 400, 100);
            profkit.lanes.drawSlices = drawSlices;
            resolve([times, drawing]);
            return;
        }
        if (!share) {
            requestAnimationFrame(step);
            return;
        }
        const turn = times.length / 20;
        send('pointermove', 400 + 300 * Math.sin(turn), 100 + 80 * Math.sin(turn / 3));
        requestAnimationFrame(step);
    };
    // The level of detail of this zoom is decoded once, before.
    setTimeout(() => {
        drawing.length = 0;
        if (share) send('pointerdown', 400, 100);
        requestAnimationFrame(step);
    }, 2000);
})"""


def measure(page: Path, width: int) -> None:
    """Print the frame times of a page at each zoom.

    Raises:
        SystemExit: There is no browser.
    """
    path = browser_path()
    if path is None:
        raise SystemExit("no browser found")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        sheet = browser.new_page(viewport={"width": width, "height": HEIGHT})
        sheet.emulate_media(reduced_motion="reduce")
        sheet.goto(page.as_uri())
        sheet.wait_for_function("performance.getEntriesByName('profkit:timeline').length > 0")
        drawn_ms = sheet.evaluate("performance.getEntriesByName('profkit:timeline')[0].startTime")
        print(f"{page.stat().st_size / 1e6:.2f} MB, drawn after {drawn_ms:.0f} ms")
        print(f"{'visible':>8}  time of a frame, ms: median, 95%, share at 60/s; of drawing it")
        worst = 1.0
        for share in SHARES:
            times, drawing = sheet.evaluate(_PAN, [share, N_FRAMES])
            in_time = sum(time < 1.5 * TARGET_MS for time in times) / len(times)
            frame = f"{median(times):10.1f} {_most(times):8.1f} {in_time:8.0%}"
            drawn = f"{median(drawing):8.1f} {_most(drawing):8.1f}" if drawing else ""
            print(f"{share:8.1%}" if share else "    idle", frame, drawn)
            if share:
                worst = min(worst, in_time)
        compared(
            "frames in time, at the worst zoom", 100 * worst, "%", TARGET_PERCENT, at_least=True
        )
        browser.close()


def _most(times_ms: list[float]) -> float:
    """Return the 95th percentile."""
    return quantiles(times_ms, n=20)[-1]


def main() -> None:
    """Make the page, unless one is given, and measure it."""
    parser = argparse.ArgumentParser(description="Time the frames of the HTML timeline.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=1400, help="of the window, in pixels")
    parser.add_argument("--page", type=Path, help="an existing page with a timeline")
    options = parser.parse_args()
    if options.page is not None:
        measure(options.page.resolve(), options.width)
        return
    with tempfile.TemporaryDirectory() as folder:
        studied = study(written(build_gpu_training(), options.events, Path(folder)))
        page = Path(folder) / "page.html"
        page.write_bytes(render(studied.report, "html", recording=studied.recording))
        measure(page, options.width)


if __name__ == "__main__":
    main()
