"""Memory as text and as Markdown: holders, trends and allocation sites."""

from dataclasses import replace

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.renderers import md as markdown
from profkit.renderers import text as terminal
from tests.renderers import reports

BASE = "/home/me/project"


def text(report: Report, **options: object) -> str:
    chosen = terminal.Options(**({"base": BASE, "width": 100} | options))  # type: ignore[arg-type]
    return terminal.render(report, chosen).decode()


def md(report: Report, **options: object) -> str:
    chosen = markdown.Options(**({"base": BASE} | options))  # type: ignore[arg-type]
    return markdown.render(report, chosen).decode()


def with_finding(finding: Finding) -> Report:
    return replace(reports.watched_report(), findings=(finding,))


def test_a_finding_without_a_source_line_begins_with_its_holder() -> None:
    assert " 1  history[17] in main at train.py:12  warning growing-container MEM004" in text(
        reports.watched_report()
    )
    assert "1. **`history[17] in main at train.py:12`**" in md(reports.watched_report())
    unheld = with_finding(replace(reports.build_grown(), holders=()))
    assert " 1  source line not recorded  warning" in text(unheld)
    assert "1. **source line not recorded**" in md(unheld)


def test_a_finding_lists_its_holders() -> None:
    first_holder, second_holder, third = (
        "history[17] in main at train.py:12",
        "__main__.trainer.log['step 17']",
        "functools.lru_cache of positional",
    )
    joined = " ".join(text(reports.watched_report()).split())
    assert f"held by: {first_holder}, {second_holder}, {third} Memory" in joined
    assert f"*held by:* `{first_holder}`, `{second_holder}`, `{third}`\n" in md(
        reports.watched_report()
    )
    more = with_finding(replace(reports.build_grown(), holders=reports.build_grown().holders * 2))
    assert f"{third} and 3 others" in " ".join(text(more).split())
    assert f"`{third}` and 3 others" in md(more)
    assert "others" not in text(more, verbose=True)


def test_growing_memory_has_a_trend() -> None:
    lines = text(reports.watched_report()).splitlines()
    line = next(line for line in lines if line.startswith("host memory"))
    figures = ["402", "MiB", "1,000", "MiB", "1,000", "MiB"]
    assert line.split()[2:-1] == figures
    bars = line.split()[-1]
    assert (bars[0], bars[-1]) == ("▁", "█")
    assert list(bars) == sorted(bars)
    assert "| host memory | 402 MiB | 1,000 MiB | 1,000 MiB | ▁" in md(reports.watched_report())


def test_a_trend_is_ascii_without_unicode() -> None:
    shown = text(reports.watched_report(), unicode=False)
    assert shown.isascii()
    assert "402 MiB  1,000 MiB  1,000 MiB  _" in shown


def test_memory_without_a_leak_is_one_line() -> None:
    report = reports.build_cpu_report()
    memory = reports.watched_memory(n_leaks=0)
    report = replace(report, summary=replace(report.summary, memory=memory))
    shown = " ".join(text(report, width=200).split())
    assert "Memory over steps" not in shown
    assert "memory over 300 steps: host memory grew from 402 MiB to" in shown
    assert "; host memory grew to the end, and what keeps it was not found; " in shown
    assert "; monitoring overhead 0.4%" in shown


def test_what_was_not_measured_is_shown() -> None:
    for shown in (text(reports.watched_report()), md(reports.watched_report())):
        assert "Steps 3 to 5 were recorded and not sampled." in shown


def test_a_snapshot_shows_the_allocation_sites_at_the_out_of_memory_error() -> None:
    shown = text(reports.build_snapshot_report())
    assert "cuda:0: allocation of 3.91 GiB failed: 33.2 GiB\n" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("lib/model.py")]
    assert rows[0] == ["lib/model.py:10", "1", "14.0", "GiB", "42%", "activations"]
    assert rows[1] == ["lib/model.py:11", "2", "1,002", "MiB", "2.9%", "optimizer", "state"]
    assert "\nallocated before recording " in shown
    assert "cuda:0 at the peak" not in shown
    assert "| `lib/model.py:10` | 1 | 14.0 GiB | 42% | activations |" in md(
        reports.build_snapshot_report()
    )


def test_verbose_shows_a_snapshot_at_all_three_moments() -> None:
    for shown in (
        text(reports.build_snapshot_report(), verbose=True),
        md(reports.build_snapshot_report(), verbose=True),
    ):
        for moment in (": allocation of 3.91 GiB failed", " at the peak", " at the end"):
            assert f"cuda:0{moment}: " in shown
        assert "train.py:21: 500 MiB unreleasable because of 3 blocks of 64.0 MiB" in shown
        assert "region forward: 2 entries, peak 29.3 GiB active, 5.00 MiB less at the end" in shown


def test_moments_with_the_same_sites_are_shown_once() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    same = replace(device, oom=(), peak_sites=device.top_sites)
    memory = replace(report.summary.memory, devices=(same,))
    report = replace(report, summary=replace(report.summary, memory=memory))
    assert text(report, verbose=True).count("allocated at") == 1


@pytest.mark.parametrize("n_devices", [1, 2])
def test_a_snapshots_history_has_a_trend(n_devices: int) -> None:
    shown = text(reports.build_snapshot_report(n_devices))
    assert shown.count("Memory over time") == 1
    assert shown.count(" active  ") == n_devices
    assert ("cuda:0 reserved" in shown) is (n_devices == 1)


def test_top_limits_the_rows_of_a_snapshot() -> None:
    assert "lib/model.py:11" not in text(reports.build_snapshot_report(), top=1)
    assert "lib/model.py:11" not in md(reports.build_snapshot_report(), top=1)


def test_a_report_on_memory_has_no_step_time() -> None:
    for report in (reports.watched_report(), reports.build_snapshot_report()):
        shown = text(report)
        assert "Step time" not in shown
        assert "whose time could be told apart" not in shown
        assert "timeline:" not in shown
