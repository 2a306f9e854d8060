"""HTML report: time to write it, its size, and the time until a browser shows it.

A recorded trace of a CPU program and a synthetic one of a GPU program with two streams are repeated
to several numbers of events, with randomly scaled times. For each, the analysis, the JSON report,
the timeline and the whole page are timed in one process; the better of two runs is used. Then a
browser, if installed, opens the page: until its first paint, until it is loaded, and until all of
its charts and its timeline are drawn. So it does with the pages of all recordings of ``traces``.

Run: ``python benchmarks/render.py [--events 10000 100000 1000000] [--trace FILE] [--small NAME]``
"""

import argparse
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import compared
from benchmarks.load import TRACES, read_source, repeat_events
from profkit.api import AnalysisResult, render, study
from profkit.present.timeline import build_timeline
from profkit.testing import TraceBuilder

LARGE_EVENTS: Final = 1_000_000
TARGET_BYTES: Final = 8_000_000
TARGET_PAINT_S: Final = 1.0
TARGET_SMALL_BYTES: Final = 400_000
TARGET_SMALL_S: Final = 0.3
ROUNDS: Final = 2
COMPLETE: Final = re.compile(rb'"ph"\s*:\s*"X"')
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SEEN: Final = """() => {
    const isShown = (place) => place?.checkVisibility();
    const [painted] = performance.getEntriesByName('first-contentful-paint');
    const [opened] = performance.getEntriesByType('navigation');
    const [drawn] = performance.getEntriesByName('profkit:timeline');
    const marks = performance.getEntriesByName('profkit:chart');
    const charts = [...document.querySelectorAll('.chart')].filter(isShown);
    const isDrawn = marks.length >= charts.length
        && (drawn || !isShown(document.getElementById('timeline')));
    if (!(painted && opened.loadEventEnd && isDrawn)) return null;
    const last = Math.max(...[...marks, drawn].map((mark) => mark?.startTime ?? 0));
    return [painted.startTime, opened.loadEventEnd, last];
}"""
"""The times of the first paint, of loading and of the last chart's or timeline's drawing, in
milliseconds after opening the page; null until all that is not collapsed is drawn."""
MAX_DRAWING_MS: Final = 120_000


def seconds(work: Callable[[], Any]) -> float:
    """Return the minimum wall time over all rounds."""
    times_s = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begin)
    return min(times_s)


def build_gpu_training() -> bytes:
    """Build a trace of ten steps on a GPU: layers, modules, memory, two streams, copies, syncs."""
    b = TraceBuilder(stacks=True, memory=True)
    chance = random.Random(0)  # noqa: S311  (not cryptographic)

    for _ in range(10):
        with b.step(), b.frame("train.py", 31, "main"), b.module("Net"):
            b.load(chance.randint(50_000, 400_000))
            b.to_device(1 << 20, chance.randint(20_000, 90_000))
            for layer in range(60):
                with b.module("Block", layer):
                    address = b.alloc(chance.randint(1, 1 << 12) << 9)
                    for kind in ("norm", "gemm", "add"):
                        b.launch(
                            f"aten::{kind}",
                            kernel=f"void {kind}_kernel<float, {layer % 7}>(int, float*)",
                            host_ns=chance.randint(5_000, 14_000),
                            device_ns=chance.randint(1_500, 60_000),
                            stream=13 if layer % 5 == 0 else 7,
                        )
                    b.free(address)
            b.item()

    return b.to_bytes()


def written(trace: bytes, n_events: int, folder: Path) -> Path:
    """Return a trace of at least this many complete events."""
    n_once = len(COMPLETE.findall(trace))
    path = folder / "repeated.pt.trace.json"
    wanted = n_events / n_once * len(trace)
    with path.open("wb") as file:
        n_written = 0
        for piece in repeat_events(trace, int(4 * wanted), random.Random(0)):  # noqa: S311  (not cryptographic)
            file.write(piece)
            n_written += len(COMPLETE.findall(piece))
            if n_written >= n_events:
                break
        file.write(b"]}")
    return path


def browser_path() -> str | None:
    """Return the browser of the system, if there is one."""
    os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


Seen = tuple[float, float, float]
"""Seconds until the first paint, until a page is loaded, and until all of it is drawn."""


def open_pages(pages: Sequence[Path]) -> list[Seen]:
    """How fast pages open, the best of three each; empty without a browser."""
    executable = browser_path()
    if executable is None:
        return []
    from playwright.sync_api import sync_playwright

    best = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for page in pages:
            times = []
            for _ in range(ROUNDS + 1):
                sheet = browser.new_page()
                sheet.goto(page.as_uri())
                seen = sheet.wait_for_function(_SEEN, timeout=MAX_DRAWING_MS).json_value()
                times.append([time_us / 1000 for time_us in seen])
                sheet.close()
            painted, loaded, drawn = map(min, zip(*times, strict=True))
            best.append((painted, loaded, drawn))
        browser.close()
    return best


def measure_small(pattern: str, folder: Path) -> None:
    """Print a row for the page of each recording of ``traces`` whose folder matches.

    The largest page, and the median time until a page is drawn, have targets.
    """
    pages = []
    for path in sorted(TRACES.glob(f"{pattern}/*.pt.trace.json.gz")):
        studied = study(path)
        page = folder / f"{path.parent.name}.html"
        page.write_bytes(render(studied.report, "html", recording=studied.recording))
        pages.append(page)

    drawn_s = []
    for page, times in zip_longest(pages, open_pages(pages)):
        print(f"{page.stem:>24} {page.stat().st_size / 1e3:9.0f} {_shown(times)}")
        drawn_s += [] if times is None else [times[-1]]
    largest = max(page.stat().st_size for page in pages)
    compared("largest page of a small recording", largest / 1e3, "kB", TARGET_SMALL_BYTES / 1e3)
    if drawn_s:
        drawn = statistics.median(drawn_s)
        compared("small page until drawn, median", drawn, "s", TARGET_SMALL_S)


def _shown(times: Seen | None) -> str:
    return " ".join(f"{time_ms:8.2f}" for time_ms in times) if times else "  no browser here"


def measure(path: Path, folder: Path) -> None:
    """Print a row for one trace."""
    begin = time.perf_counter()
    studied: AnalysisResult = study(path)
    analysis_s = time.perf_counter() - begin
    report, recording = studied.report, studied.recording
    json_s = seconds(lambda: render(report, "json"))
    timeline_s = seconds(lambda: build_timeline(recording.context, report))
    html_s = seconds(lambda: render(report, "html", recording=recording))
    page = folder / "page.html"
    page.write_bytes(render(report, "html", recording=recording))
    n_bytes = page.stat().st_size
    seen = next(iter(open_pages([page])), None)
    times = f"{analysis_s:9.2f} {json_s:7.3f} {timeline_s:9.2f} {html_s:7.2f}"
    ratios = f"{html_s / analysis_s:10.2f} {html_s / json_s:7.0f}"
    print(
        f"{len(recording.context.events):>9,} {times} {ratios} {n_bytes / 1e6:7.2f} {_shown(seen)}"
    )

    if len(recording.context.events) >= LARGE_EVENTS:
        compared("page of a million events", n_bytes / 1e6, "MB", TARGET_BYTES / 1e6)
        if seen:
            compared("a million events until painted", seen[0], "s", TARGET_PAINT_S)


def main() -> None:
    """Create the traces one after the other, and measure each."""
    parser = argparse.ArgumentParser(description="Time the HTML page and weigh it.")
    parser.add_argument(
        "--events",
        type=int,
        nargs="+",
        default=[10_000, 100_000, 1_000_000],
        help="numbers of events",
    )
    parser.add_argument("--trace", type=Path, help="the recorded trace to repeat")
    parser.add_argument("--small", default="*", help="pattern of folders of small recordings")
    options = parser.parse_args()

    trace = read_source(options.trace)
    print("seconds to analyze, to write JSON, to lay out the timeline, to write the page;")
    print("the page relative to analysis and JSON; MB; seconds until painted, loaded, drawn")
    columns = [("analysis", 9), ("json", 7), ("timeline", 9), ("html", 7), ("x analysis", 10)]
    columns += [("x json", 7), ("MB", 7), ("painted", 8), ("loaded", 8), ("drawn", 8)]
    print(f"{'events':>9}", *(f"{name:>{width}}" for name, width in columns))

    for program, text in (
        ("recorded, on the CPU", trace),
        ("made, on a GPU", build_gpu_training()),
    ):
        print(program)
        for n_events in options.events:
            with tempfile.TemporaryDirectory() as folder:
                measure(written(text, n_events, Path(folder)), Path(folder))

    print(f"{'small recordings':>24} {'kB':>9} {'painted':>8} {'loaded':>8} {'drawn':>8}")
    with tempfile.TemporaryDirectory() as folder:
        measure_small(options.small, Path(folder))


if __name__ == "__main__":
    main()
