"""The report on a job in a terminal and in Markdown."""

from dataclasses import replace

import pytest

from profkit.api import render
from profkit.model.job import LastRank, Slowdown
from profkit.model.report import Report
from profkit.units import format_ns
from tests import job_traces
from tests.job_traces import LATE_NS, repeat_ranks


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return job_traces.job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def large(report: Report) -> Report:
    """Return a thousand ranks with many process groups and findings."""
    collectives = report.collectives
    assert collectives is not None
    (group,) = collectives.groups
    last = LastRank(rank=1017, n=1280, late_ns=10**10, why="compute")
    groups = tuple(
        replace(
            group,
            kind="reduce-scatter",
            group=f"dp{n}",
            n=1280,
            last=(last,),
            ranks=tuple(range(n, 1000, 100)),
        )
        for n in range(50)
    )

    return replace(
        repeat_ranks(report, 1000, 20),
        collectives=replace(collectives, groups=groups),
        findings=report.findings[:1] * 8,
    )


@pytest.mark.parametrize("width", [80, 100, 140])
def test_who_is_last_and_why_is_never_cut(large: Report, width: int) -> None:
    lines = render(large, "text", width=width).decode().splitlines()
    assert all(len(line) <= width for line in lines)
    rows = [line for line in lines if line.startswith("reduce-scatter · dp")]
    assert len(rows) == 5
    assert all("rank 1017 in 1,280" in row for row in rows)
    at = lines.index(rows[0])
    assert "computes longer" in " ".join(lines[at : at + 2])


def test_it_fits_one_screen(large: Report) -> None:
    lines = render(large, "text", width=80).decode().splitlines()
    assert len(lines) <= 52
    assert sum(line.count("COM004") for line in lines) == 5
    assert not any(line.startswith(("Step time of rank", "Critical path")) for line in lines)


def test_what_a_screen_leaves_out_is_shown_with_verbose(report: Report) -> None:
    brief, whole = (render(report, "text", verbose=verbose).decode() for verbose in (False, True))
    assert "`profkit analyze -v` shows the times of rank 0 with its kernels" in brief
    assert "Kernel time" not in brief
    assert "--verbose" not in whole
    assert "Kernel time" in whole
    assert "checks skipped" in brief


def test_the_page_has_the_mean_wait_of_the_ranks(report: Report) -> None:
    page = render(report, "html").decode()
    mean = format_ns(LATE_NS // 2)
    assert f"<dt>Waiting for ranks</dt><dd><b>{mean}</b> <span>per step, mean of 2 ranks" in page


def test_the_page_has_the_slowdown_by_unequal_ranks(report: Report) -> None:
    collectives = report.collectives
    assert collectives is not None
    slowdown = Slowdown(4, 1_200_000, 1_180_000, 1_000_000, 1.18, 0.0)
    page = render(
        replace(report, collectives=replace(collectives, slowdown=slowdown)), "html"
    ).decode()
    assert "<dt>Slowdown by ranks</dt><dd><b>1.18 times</b>" in page
    assert "1.18 ms instead of 1.00 ms with equal ranks" in page
    without = render(
        replace(report, collectives=replace(collectives, slowdown=None)), "html"
    ).decode()
    assert "Slowdown by ranks" not in without


def test_the_page_says_how_many_ranks_there_are(report: Report) -> None:
    assert "2 ranks; 100% of calls matched" in render(report, "html").decode()
    partial = replace(report, missing_ranks=(2, 3))
    assert "2 of 4 ranks; 100% of calls matched" in render(partial, "html").decode()


def test_markdown_has_a_row_for_each_rank(report: Report) -> None:
    text = render(report, "md").decode()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert any("rank 1 in 4" in row and "host is late" in row for row in rows)
    assert any(row.startswith("| 0 ") and "one" in row for row in rows)
