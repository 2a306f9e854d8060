"""Exported traces in the importer of Chrome's trace viewer, which torch-tb-profiler contains.

The rows of the recording are imported as without the added events, and no added event is lost.
"""

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch_tb_profiler
from playwright.sync_api import Browser, Page, Route

from profkit.api import render, study
from tests import job_traces
from tests.corpus.recordings import trace_path
from tests.job_traces import KERNEL
from tests.renderers.test_chrome import gpu_program
from tests.renderers.trace_viewer import events_of, ours

ROOT = Path(__file__).parents[2]
STATIC = Path(torch_tb_profiler.__file__).parent / "static"
NAMES = (
    *("leak_losses_with_graph", "starved_loader", "a synthetic program"),
    *("b300-graph-decode", "legacy-autograd-array"),
)
"""Traces of this project, and of the corpus where it is available."""

IMPORT = """(text) => {
    const model = new tr.Model();
    new tr.importer.Import(model, new tr.importer.ImportOptions()).importTraces([text]);
    const rows = {};
    for (const thread of model.getAllThreads()) {
        const named = [thread.parent.pid, thread.tid].join(' ');
        rows[named] = thread.sliceGroup.slices.map((one) => [one.title, one.start, one.duration]);
    }
    const counters = {};
    for (const counter of model.getAllCounters()) {
        const places = counter.series.map((series) => series.samples.map((one) => one.timestamp));
        counters[[counter.parent.pid, counter.name].join(' ')] = places[0].length;
    }
    const warnings = model.importWarnings.map((warning) => warning.message);
    return {rows, counters, warnings, n_arrows: model.flowEvents.length};
}"""


@dataclass(frozen=True)
class Imported:
    """A trace as the viewer imports it.

    Attributes:
        rows: Slices by process and thread: name, start and length in milliseconds.
        counters: Points by process and counter.
        warnings: Warnings of the importer.
        n_arrows: Flow arrows.
    """

    rows: dict[str, list[tuple[str, float, float]]]
    counters: dict[str, int]
    warnings: list[str]
    n_arrows: int


Importer = Callable[[bytes], Imported]


@pytest.fixture(scope="module")
def viewer(browser: Browser, web_components: bytes) -> Iterator[Importer]:
    """Chrome's importer, on a page without network access."""

    def serve(route: Route) -> None:
        name = route.request.url.rsplit("/", 1)[1]
        if name == "webcomponents.min.js":
            route.fulfill(body=web_components, content_type="text/javascript")
        elif (STATIC / name).is_file():
            route.fulfill(path=STATIC / name)
        else:
            route.abort()

    page: Page = browser.new_page()
    page.route("**/*", serve)
    page.goto("http://viewer.test/trace_embedding.html")
    page.wait_for_function("!!(window.tr && tr.importer && tr.importer.Import && tr.Model)")
    yield lambda text: Imported(**page.evaluate(IMPORT, text.decode()))
    page.close()


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    recorded = [*(ROOT / "traces" / request.param).glob("*.json.gz")]
    if recorded:
        return recorded[0]
    if " " in request.param:
        return gpu_program().write(tmp_path / "gpu.json")
    path = trace_path(request.param)
    if not path.exists():
        pytest.skip("the corpus of traces is not available")
    return path


def written(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def test_chromes_importer_imports_the_added_events_and_the_unchanged_recording(
    viewer: Importer, path: Path
) -> None:
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    studied = study(path)
    product = render(studied.report, "chrome", recording=studied.recording)
    before, after = viewer(text), viewer(product)
    added = ours(events_of(product))
    (our_process,) = {str(event["pid"]) for event in written(added, "M")}

    assert after.warnings == before.warnings
    drawn = {name: row for name, row in after.rows.items() if name.split()[0] == our_process}
    # Marks are on the rows of the recording, beside the events of findings.
    marks = Counter(event["name"] for event in written(added, "i"))
    recorded = {name: row for name, row in after.rows.items() if name not in drawn}
    imported = Counter(name for row in recorded.values() for name, _, _ in row if name in marks)
    assert imported == marks
    unmarked = {
        name: [shown_slice for shown_slice in row if shown_slice[0] not in marks]
        for name, row in recorded.items()
    }
    assert unmarked == before.rows
    names = Counter(name for row in drawn.values() for name, _, _ in row)
    assert names == Counter(event["name"] for event in written(added, "X"))
    assert after.n_arrows - before.n_arrows == len(written(added, "s"))
    points = Counter(event["name"] for event in written(added, "C"))
    counters = {name: n for name, n in after.counters.items() if name not in before.counters}
    assert {name.split(maxsplit=1)[1]: n for name, n in counters.items()} == points
    assert names


def test_the_trace_of_a_job_has_the_rows_of_all_ranks(viewer: Importer, tmp_path: Path) -> None:
    report = job_traces.job(tmp_path, 3)
    shown = viewer(render(report, "chrome"))
    assert shown.warnings == []

    alone = [viewer(path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert shown.n_arrows == sum(rank.n_arrows for rank in alone)
    reduces = [
        rows
        for rows in shown.rows.values()
        if any(shown_slice[0] == KERNEL for shown_slice in rows)
    ]
    ends = [[start + dur for name, start, dur in rows if name == KERNEL] for rows in reduces]
    assert len(ends) == 3
    assert ends[0] == pytest.approx(ends[1])
    assert ends[0] == pytest.approx(ends[2])
    assert report.lanes is not None

    n_added = sum(int((lane.slices.row > 0).sum()) for lane in report.lanes.lanes)
    n_recorded = sum(len(rows) for rank in alone for rows in rank.rows.values())
    assert sum(map(len, shown.rows.values())) == n_recorded + n_added
