"""Every recording of the corpus in every format; and what comes back is what went out."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from profkit.analysis.options import AnalysisOptions
from profkit.api import AnalysisResult, analyze, render, study
from profkit.model.report import Report
from profkit.present.labels import part_label
from profkit.present.renderer import renderers
from tests.corpus.recordings import SNAPSHOTS, TRACES, needs_corpus
from tests.renderers.trace_viewer import check, events_of, ours

pytestmark = pytest.mark.slow

FILES = sorted((*TRACES.glob("*"), *SNAPSHOTS.glob("*")))
TRACE_FILES = [path for path in FILES if path.parent.name == "traces"]
LARGE_BYTES = 200_000
"""Packed; reading what a viewer reads of larger ones takes Python too long for every run."""

_kept: dict[Path, AnalysisResult] = {}


def studied(path: Path) -> AnalysisResult:
    """Return the study of a file; the last one is kept, since its tests follow each other."""
    if path not in _kept:
        _kept.clear()
        _kept[path] = study(path, AnalysisOptions(strict=True))
    return _kept[path]


def of_any_place(report: Report) -> Report:
    return replace(report, source=replace(report.source, path=""))


@needs_corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_it_renders_to_every_format(path: Path) -> None:
    result = studied(path)
    screen = render(result.report, "text", width=100).decode().splitlines()
    assert len(screen) <= 40 or path not in TRACE_FILES
    for module in renderers():
        if module.INFO.name == "chrome" and path in TRACE_FILES:
            continue  # the next test reads it as well
        product = render(result.report, module.INFO.name, recording=result.recording, verbose=True)
        assert product or module.INFO.name == "folded", module.INFO.name
        if "json" in module.INFO.media_type:
            json.loads(product)


@needs_corpus
@pytest.mark.parametrize("path", TRACE_FILES, ids=lambda path: path.name.partition(".")[0])
def test_the_trace_for_viewers_gives_the_figures_of_the_original(
    path: Path, tmp_path: Path
) -> None:
    result = studied(path)
    product = render(result.report, "chrome", recording=result.recording)
    exported = tmp_path / "exported.json"
    exported.write_bytes(product)
    assert of_any_place(analyze(exported, strict=True)) == of_any_place(result.report)


@needs_corpus
@pytest.mark.parametrize(
    "path",
    [path for path in TRACE_FILES if path.stat().st_size < LARGE_BYTES],
    ids=lambda path: path.name.partition(".")[0],
)
def test_viewers_can_draw_it_and_idle_time_adds_up(path: Path) -> None:
    result = studied(path)
    events = events_of(render(result.report, "chrome", recording=result.recording))
    check(events)
    drawn: Counter[tuple[str, str]] = Counter()
    for event in ours(events):
        if event.get("args", {}).keys() == {"device"}:
            drawn[event["args"]["device"], event["name"]] += round(event["dur"] * 1000)
    for device in result.report.summary.devices:
        for cause in device.idle_causes:
            name = part_label(f"idle-{cause.cause}")
            # Of a clock that starts in 1970 viewers hold whole microseconds.
            assert drawn[device.device, name] == pytest.approx(cause.ns, rel=0.05, abs=50_000)
