"""What is said of memory follows from the figures alone."""

from dataclasses import replace

import pytest

from profkit.model.location import Location
from profkit.model.memory_summary import (
    AllocationSite,
    MemoryPoint,
    MemorySummary,
    MemoryUse,
    StepMemory,
)
from profkit.model.report import Report, Summary
from profkit.present.headline import facts, headline
from profkit.present.memory_text import (
    MemorySeriesRow,
    allocation_tables,
    device_series_rows,
    memory_sentences,
    series_rows,
    use_of,
)
from tests.renderers import reports

MIB = 1 << 20


def watched(*host_mib: int, n_leaks: int | None = 0) -> Report:
    steps = tuple(
        StepMemory(step, n * MIB, None, None, None, None) for step, n in enumerate(host_mib, 1)
    )
    memory = MemorySummary(steps=steps, n_monitored_steps=len(steps), n_leaks=n_leaks)
    return Report("0.1.0", reports.source(path="", kind="live"), Summary(0, memory=memory))


def test_a_watched_program_is_told_from_its_first_step_to_its_last() -> None:
    said = headline(reports.watched_report())
    assert said == (
        "Over 300 steps host memory went from 402 MiB to 1,000 MiB and tensors went from 2.00 MiB "
        "to 600 MiB. Tensors pile up with every step, about 2.00 MiB a step."
    )


def test_memory_that_stays_is_said_to_stay() -> None:
    assert headline(watched(100, 130, 100)) == (
        "Over 3 steps host memory stayed at 100 MiB. Nothing grows with every step."
    )


def test_growth_that_nothing_explains_is_not_denied_but_where_it_is_small() -> None:
    report = watched(100, 130, 160)
    memory = report.summary.memory
    assert memory is not None

    def said(per_step_bytes: int) -> str:
        grown = replace(memory, unexplained_per_step_bytes=per_step_bytes)
        return headline(replace(report, summary=replace(report.summary, memory=grown)))

    assert said(300 << 10).endswith(
        "The process takes 300 KiB more with every step, and no tensor or container of the program "
        "explains it; a library may keep it."
    )
    assert said((64 << 10) - 1).endswith("Nothing grows with every step.")


def test_growth_that_could_not_be_judged_is_not_denied() -> None:
    assert "grows" not in headline(watched(100, 130, n_leaks=None))
    assert not any("grows" in fact for fact in facts(watched(1, 2, n_leaks=None), everything=True))


def test_notes_alone_are_said_to_be_no_more() -> None:
    note = replace(reports.grown(), severity="note")
    report = replace(reports.watched_report(), findings=(note,))
    assert headline(report).endswith("No finding is more than a note.")


def test_a_snapshot_that_ran_out_of_memory_says_what_was_asked_and_why_not() -> None:
    assert headline(reports.snapshot_report()) == (
        "cuda:0 has 34.2 GiB reserved and 33.2 GiB in use, and 33.7 GiB at the peak. cuda:0 could "
        "not give 3.91 GiB at train.py:21 while 3.75 GiB were free on the device; PyTorch had "
        "enough that was free, but in pieces of at most 112 MiB."
    )


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("exhaustion", "on the device; what PyTorch had was in use."),
        ("limit", "on the device; the device had enough, and a limit stood in the way."),
        (None, "were free on the device."),
        ("not yet known", "were free on the device."),
    ],
)
def test_each_reason_has_its_words(reason: str | None, end: str) -> None:
    report = reports.snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    other = replace(device, oom=(replace(device.oom[0], reason=reason),))
    memory = replace(report.summary.memory, devices=(other,))
    said = memory_sentences(replace(report, summary=Summary(0, memory=memory)))
    assert said[1].endswith(end)


def test_of_several_devices_the_fullest_is_told() -> None:
    assert headline(reports.snapshot_report(3)).startswith(
        "Of 3 devices cuda:2 is the fullest, with 34.2 GiB reserved and 33.2 GiB in use"
    )


def test_figures_that_were_never_taken_or_stay_at_nothing_have_no_course() -> None:
    names = [course.name for course in series_rows(reports.watched_report())]
    assert names == ["host memory", "tensors", "kept for backward"]
    assert series_rows(watched(100)) == []
    assert series_rows(reports.empty_report()) == []


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ((0, 7), 2, "▁█"),
        ((0, 1, 2, 3, 4, 5, 6, 7), 7, "▂▃▄▅▆▇█"),
        ((0, 7, 0), 2, "█▁"),
        ((1000, 1005), 4, "▁▁▁▁"),
        ((5, 5, 5), 3, "▁▁▁"),
        ((0, 0, 100), 4, "▁▁▁█"),
    ],
)
def test_a_course_is_drawn_from_its_lowest_to_its_highest(
    values: tuple[int, ...], width: int, drawn: str
) -> None:
    assert MemorySeriesRow("host", tuple(range(1, len(values) + 1)), values).drawn(width) == drawn


def test_looks_far_apart_hold_until_the_next_one() -> None:
    assert MemorySeriesRow("host", (1, 10, 100), (0, 7, 0)).drawn(10) == "█████████▁"


def test_shares_are_of_what_stood_at_that_moment() -> None:
    (at_oom,) = allocation_tables(reports.snapshot_report(), everything=False)
    assert at_oom.share(at_oom.sites[0]) == pytest.approx(14_300 / 34_000)


def test_a_use_that_has_no_word_yet_is_shown_as_it_is() -> None:
    assert use_of(AllocationSite(Location(), (), 1, 1, "scratch")) == "scratch"
    assert use_of(AllocationSite(Location(), (), 1, 1, "unknown")) == ""


def test_a_snapshot_without_history_has_no_peak() -> None:
    report = reports.snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    bare = replace(device, n_trace_events=0, oom=(), timeline=())
    memory = replace(report.summary.memory, devices=(bare,))
    report = replace(report, summary=Summary(0, memory=memory), unchecked=())
    assert [each.title for each in allocation_tables(report, everything=True)] == [
        "On cuda:0 in the end"
    ]
    assert facts(report, everything=False)[0].endswith("largest free block 112 MiB, no history")
    assert headline(report).endswith("at the peak. No rule found anything to change.")
    checked = replace(report, unchecked=reports.unchecked_report().unchecked)
    assert headline(checked).endswith("The rules that could look found nothing to change.")


def test_a_peak_that_reads_like_the_end_is_not_told() -> None:
    report = reports.snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    level = replace(device, peak_active_bytes=device.active_bytes + 1, oom=())
    memory = replace(report.summary.memory, devices=(level,))
    said = memory_sentences(replace(report, summary=Summary(0, memory=memory)))
    assert said == ["cuda:0 has 34.2 GiB reserved and 33.2 GiB in use."]


def test_a_snapshot_of_no_device_says_so() -> None:
    empty = replace(reports.snapshot_report(), summary=Summary(0), unchecked=())
    assert headline(empty) == (
        "The snapshot holds no memory of any device. No rule found anything to change."
    )


def test_free_memory_is_told_by_who_could_give_it_back() -> None:
    report = reports.snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    assert facts(report, everything=False)[1] == (
        "cuda:0: of the free memory 200 MiB can go back to the driver, 800 MiB are held in place "
        "by blocks in use, most of it by train.py:21"
    )
    pools = replace(device, private_free_bytes=3 * MIB)
    memory = replace(report.summary.memory, devices=(pools,))
    said = facts(replace(report, summary=Summary(0, memory=memory)), everything=False)[1]
    assert said.endswith("train.py:21, 3.00 MiB belong to private pools")


def test_a_device_that_had_nothing_and_a_history_of_one_entry_have_no_course() -> None:
    report = reports.snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    nothing = tuple(MemoryPoint(k, None, 0, 0) for k in range(5))
    bare = replace(device, device="cuda:1", timeline=nothing)
    short = replace(device, device="cuda:2", timeline=device.timeline[:2])
    memory = replace(report.summary.memory, devices=(device, bare, short))
    shown = device_series_rows(replace(report, summary=Summary(0, memory=memory)))
    assert [course.name for course in shown] == ["cuda:0 in use", "cuda:0 reserved"]


def test_the_parts_of_a_peak_are_shares_of_what_stood_then() -> None:
    report = reports.snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    # The history's own figure is of requests, and 500 MiB more than what stood.
    uses = (MemoryUse("activation", 3, 30_000 * MIB), MemoryUse("unknown", 1, 4000 * MIB))
    memory = replace(report.summary.memory, devices=(replace(device, peak_uses=uses, oom=()),))
    (peak, _) = allocation_tables(
        replace(report, summary=Summary(0, memory=memory)), everything=True
    )
    assert (peak.title, peak.total_bytes) == ("On cuda:0 at its peak", 34_000 * MIB)
