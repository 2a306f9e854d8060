"""The main figures by an independent computation, and the same on every surface."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from profkit.api import analyze, render
from profkit.integrations.tensorboard.export import build_points
from profkit.integrations.tensorboard.run_summary import summarize_run
from profkit.integrations.training import figures
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from profkit.present.labels import cost_text
from profkit.present.main_figures import SAVING_TITLE, main_figures
from profkit.renderers.html._combined import build_combined_page
from profkit.testing import TraceBuilder
from profkit.units import format_ns, format_share
from tests.renderers.test_html_drawn import data
from tests.tensorboard.recordings import write_gpu_training


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    analysis = analyze(write_gpu_training(tmp_path_factory.mktemp("traces")))
    assert analysis.summary.recoverable_ns
    return analysis


def test_main_figures_are_means_over_the_steps(report: Report) -> None:
    steps = report.summary.steps
    total_ns = sum(step.time_ns for step in steps)
    figures = main_figures(report)
    assert figures.step_ns == pytest.approx(total_ns / len(steps), abs=1)
    assert figures.busy_share == pytest.approx(
        sum(step.gpu_busy_ns or 0 for step in steps) / total_ns
    )
    assert figures.saving_ns == round(report.summary.recoverable_ns / len(steps))
    assert figures.saving_share == report.summary.recoverable_ns / total_ns


def test_without_steps_they_are_of_the_whole_recording(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=30_000)
    b.advance(100_000)
    b.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=30_000)
    figures = main_figures(analyze(b.write(tmp_path / "t.json")))
    assert figures.step_ns is None
    assert figures.busy_share == pytest.approx(
        60_000 / (60_000 + 105_000 - 30_000 + 5_000), rel=0.1
    )
    saved = replace(figures, saving_ns=2_000_000, saving_share=0.25)
    assert saved.saving == ("2.00 ms", "(25%)")


def test_a_figure_with_a_label_is_the_same_on_every_surface(report: Report) -> None:
    figures = main_figures(report)
    assert figures.step_ns is not None
    assert figures.busy_share is not None
    step, busy = format_ns(figures.step_ns), format_share(figures.busy_share)
    sentence = headline(report)
    assert f"The GPU is busy {busy} of each {step} step" in sentence

    for name in ("text", "md", "fragment", "html"):
        shown = unescape(" ".join(render(report, name).decode().split()))
        assert {*re.findall(r"(?:[Ss]tep time:|of each) (?:\*\*)?([\d.]+ \w+)", shown)} == {step}, (
            name
        )
        assert {*re.findall(r"is busy (\S+) of each", shown)} == {busy}, name
    page = unescape(render(report, "html").decode())
    tiles = dict(re.findall(r'class="tile"><dt>([^<]+)</dt><dd><b>([^<]+)</b>', page))
    assert (tiles["Step time"], tiles["GPU busy"]) == (step, busy)
    assert tiles[SAVING_TITLE] == format_ns(figures.saving_ns)

    joined = data(build_combined_page([page.encode(), page.encode()]).decode(), "reports")
    table = joined["tables"]["side-by-side"]["rows"]
    assert {(row[2], row[3]) for row in table} == {(figures.step_ns, figures.busy_share)}

    first = report.findings[0]
    assert {row[-1] for row in table} == {f"{first.title}: {cost_text(report, first)}"}


def test_tensorboard_and_loggers_have_the_same_figures(report: Report) -> None:
    main, run = main_figures(report), summarize_run(report)
    assert (run.step_ns, run.busy_share, run.saving_ns) == (
        main.step_ns,
        main.busy_share,
        main.saving_ns,
    )
    logged = figures(report)
    exported = {point.tag: point.value for point in build_points(report, 0)}
    for name, scale in (("step_ms", 1e6), ("busy_share", 1), ("saving_ms", 1e6)):
        value = getattr(main, name.replace("_ms", "_ns"))
        assert logged[f"profkit/{name}"] == value / scale
        assert exported[f"profkit_recordings/{name}"] == value / scale
