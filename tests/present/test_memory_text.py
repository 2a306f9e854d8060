"""Sentences and rows on memory follow from the figures."""

from dataclasses import replace
from pathlib import Path

import pytest

import profkit
from profkit.api import analyze
from profkit.model.finding import Cost
from profkit.model.live_memory import HostPeak
from profkit.model.location import Location
from profkit.model.memory_summary import (
    AllocationSite,
    MemoryPoint,
    MemorySummary,
    MemoryUse,
    StepMemory,
)
from profkit.model.report import Report, Summary
from profkit.present.diagnosis import headline
from profkit.present.facts import facts
from profkit.present.memory_text import (
    MemorySeriesRow,
    allocation_tables,
    device_series_rows,
    memory_facts,
    memory_sentences,
    monitored_steps,
    no_leak_text,
    series_rows,
    use_label,
)
from profkit.testing import LiveBuilder, SnapshotBuilder
from profkit.testing.snapshot_builder import Layout
from tests.renderers import reports

MIB = 1 << 20


def monitored(*host_mib: int, n_leaks: int | None = 0) -> Report:
    steps = tuple(
        StepMemory(step, n * MIB, None, None, None, None) for step, n in enumerate(host_mib, 1)
    )
    memory = MemorySummary(steps=steps, n_monitored_steps=len(steps), n_leaks=n_leaks)
    return Report("0.1.0", reports.source(path="", kind="live"), Summary(0, memory=memory))


def test_the_headline_of_a_monitored_program_compares_first_and_last_step() -> None:
    assert headline(reports.watched_report()) == (
        "Over 300 steps host memory grew from 402 MiB to 1,000 MiB and tensors grew from 2.00 MiB "
        "to 600 MiB. Highest memory cost: tensors pile up with every step, about 2.00 MiB per "
        "step."
    )


def test_constant_memory_is_reported_as_such() -> None:
    assert headline(monitored(100, 130, 100)) == (
        "Over 3 steps host memory stayed at 100 MiB. No memory grows with every step."
    )


def test_unexplained_growth_is_reported_from_a_minimum_on() -> None:
    report = monitored(100, 130, 160)
    memory = report.summary.memory
    assert memory is not None

    def text(per_step_bytes: int) -> str:
        grown = replace(memory, unexplained_per_step_bytes=per_step_bytes)
        return headline(replace(report, summary=replace(report.summary, memory=grown)))

    assert text(300 << 10).endswith(
        "The process grows by 300 KiB per step; it is not known whether Python objects or a "
        "library retain it."
    )
    assert text((64 << 10) - 1).endswith(
        "Host memory grew to the end, and what keeps it was not found."
    )


def test_too_few_steps_to_find_leaks_are_not_reported_as_no_leak() -> None:
    assert "grows" not in headline(monitored(100, 130, n_leaks=None))
    assert not any(
        "grows" in fact for fact in facts(monitored(1, 2, n_leaks=None), everything=True)
    )


def test_a_report_with_notes_only_names_the_one_with_the_highest_cost() -> None:
    note = replace(reports.build_grown(), severity="note")
    report = replace(reports.watched_report(), findings=(note,))
    assert headline(report).endswith(", about 2.00 MiB per step.")
    report = replace(report, findings=(replace(note, cost=Cost()),))
    assert headline(report).endswith("All findings are notes.")
    warning = replace(note, cost=Cost(), severity="warning", title="Something is reserved anew")
    report = replace(report, findings=(warning,))
    assert ". Main finding: something is reserved anew" in headline(report)


def test_a_failed_allocation_is_reported_with_its_size_and_reason() -> None:
    assert headline(reports.build_snapshot_report()) == (
        "cuda:0 ran out of memory at train.py:21: an allocation of 3.91 GiB failed with 3.75 GiB "
        "free on the device; PyTorch had enough free memory, but in separate blocks of at most "
        "112 MiB. By stacks, the 33.7 GiB peak of cuda:0 is 42% from model.py:10 and 8.7% from "
        "before the recording."
    )


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("exhaustion", "on the device; all memory that PyTorch had reserved was active."),
        ("limit", "on the device; the device had enough, but a memory limit was reached."),
        (None, "free on the device."),
        ("not yet known", "free on the device."),
    ],
)
def test_each_reason_of_a_failed_allocation_has_a_text(reason: str | None, end: str) -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    other_device = replace(device, oom=(replace(device.oom[0], reason=reason),))
    memory = replace(report.summary.memory, devices=(other_device,))
    sentences = memory_sentences(replace(report, summary=Summary(0, memory=memory)))
    assert sentences[0].endswith(end)


def test_of_several_devices_the_one_with_most_reserved_memory_is_reported() -> None:
    text = headline(reports.build_snapshot_report(3))
    assert text.startswith(
        "cuda:2 and 2 other devices ran out of memory at train.py:21: an allocation of"
    )
    assert "the 33.7 GiB peak of cuda:2, the fullest of 3 devices, is 42% from model.py:10" in text


def test_figures_that_are_unknown_or_stay_0_have_no_row() -> None:
    names = [row.name for row in series_rows(reports.watched_report())]
    assert names == ["host memory", "tensors", "saved for backward"]
    assert series_rows(monitored(100)) == []
    assert series_rows(reports.empty_report()) == []


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ((0, 7), 2, "▁█"),
        ((0, 1, 2, 3, 4, 5, 6, 7), 7, "▂▃▄▅▆▇█"),
        ((0, 7, 0), 2, "█▁"),
        ((1000, 1005), 4, "▁▁▁▁"),
        ((5, 5, 5), 3, "▁▁▁"),
        ((0, 0, 100), 4, "▁▁▁█"),
    ],
)
def test_a_trend_is_drawn_from_minimum_to_maximum(
    values: tuple[int, ...], width: int, bars: str
) -> None:
    assert MemorySeriesRow("host", tuple(range(1, len(values) + 1)), values).trend(width) == bars


def test_a_value_holds_until_the_next_sample() -> None:
    assert MemorySeriesRow("host", (1, 10, 100), (0, 7, 0)).trend(10) == "█████████▁"


def test_shares_are_of_all_live_blocks_at_that_moment() -> None:
    (at_oom,) = allocation_tables(reports.build_snapshot_report(), everything=False)
    assert at_oom.share(at_oom.sites[0]) == pytest.approx(14_300 / 34_000)


def test_an_unknown_use_is_shown_as_it_is() -> None:
    assert use_label("scratch") == "scratch"
    assert use_label("unknown") == ""


def test_a_snapshot_without_history_has_no_peak() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    bare = replace(device, n_trace_events=0, oom=(), timeline=())
    memory = replace(report.summary.memory, devices=(bare,))
    report = replace(report, summary=Summary(0, memory=memory), unchecked=())
    assert [table.title for table in allocation_tables(report, everything=True)] == [
        "cuda:0 at the end"
    ]
    assert facts(report, everything=False)[0].endswith("largest free block 112 MiB, no history")
    assert headline(report).endswith(". No problems found.")
    checked = replace(report, unchecked=reports.unchecked_report().unchecked)
    assert headline(checked).endswith(
        "No problems found; 13 checks skipped: there are no operators."
    )


def test_devices_that_ran_out_of_memory_together_are_counted() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    memory = replace(report.summary.memory, devices=(device, replace(device, device="cuda:1")))
    first, *_ = memory_sentences(replace(report, summary=Summary(0, memory=memory)))
    assert first.startswith("cuda:0 and 1 other device ran out of memory at train.py:21: an ")


def test_a_snapshot_without_stacks_asks_for_its_history() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    bare = replace(device, n_trace_events=0, oom=(), timeline=(), peak_sites=(), top_sites=())
    report = replace(report, findings=())
    summary = Summary(0, memory=MemorySummary(devices=(bare,)))
    assert headline(replace(report, summary=summary)) == (
        "Of the 34.2 GiB reserved on cuda:0 1,000 MiB (2.9%) are free, and no stack tells what the "
        "other 33.2 GiB are. Call `torch.cuda.memory._record_memory_history()` before the code of "
        "interest."
    )


def test_a_peak_of_many_lines_names_the_largest() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    total = device.at_peak_bytes
    sites = tuple(
        AllocationSite(Location("a.py", line, "f"), (), 1, total // 40 - line) for line in range(4)
    )
    many = replace(device, oom=(), peak_sites=sites)
    summary = Summary(0, memory=MemorySummary(devices=(many,)))
    first, *_ = memory_sentences(replace(report, summary=summary))
    assert first == "The 33.7 GiB peak of cuda:0 is of many lines, the largest 2.5% at a.py:0."


def test_figures_that_end_before_the_program_are_shown_with_their_last_step() -> None:
    report = monitored(402, 410, 412)
    memory = report.summary.memory
    assert memory is not None
    assert monitored_steps(memory) == "3 monitored steps"
    assert no_leak_text(memory) == "no memory grows with every step"
    graph = replace(memory.steps[0], graph_bytes=MIB), replace(memory.steps[1], graph_bytes=2 * MIB)
    short = replace(memory, steps=(*graph, memory.steps[2]), n_monitored_steps=4)
    names = [row.name for row in series_rows(replace(report, summary=Summary(0, memory=short)))]
    assert names == ["host memory (to step 3)", "saved for backward (to step 2)"]
    assert monitored_steps(short) == "4 monitored steps (to step 3)"
    assert no_leak_text(short) == "no memory grows with every step (to step 3)"


def test_a_process_that_has_grown_is_not_said_to_have_no_growth() -> None:
    report = monitored(400, 500, 500, 500, 500)
    memory = report.summary.memory
    assert memory is not None
    assert no_leak_text(memory) == "host memory has hardly grown since step 2"

    # What the allocator keeps is no leak of the program.
    freed = [0, 60, 60, 60, 60]
    steps = [
        replace(step, heap_free_bytes=n * MIB) for step, n in zip(memory.steps, freed, strict=True)
    ]
    assert no_leak_text(replace(memory, steps=tuple(steps))) == (
        "host memory has hardly grown since step 2; 60.0 MiB of the growth is freed memory that "
        "C's allocator keeps"
    )

    # Free blocks that are not resident are no part of the growth: 70 MiB of it are in use.
    in_use = [
        replace(step, heap_bytes=n * MIB)
        for step, n in zip(steps, [0, 70, 70, 70, 70], strict=True)
    ]
    assert no_leak_text(replace(memory, steps=tuple(in_use))) == (
        "host memory has hardly grown since step 2; 30.0 MiB of the growth is freed memory that "
        "C's allocator keeps"
    )

    unmeasured = [replace(step, host_rss_bytes=None) for step in memory.steps]
    for steps in ([], unmeasured):
        assert "no memory grows" in no_leak_text(replace(memory, steps=tuple(steps)))

    late = monitored(400, 400, 400, 440).summary.memory
    assert late is not None
    assert no_leak_text(late) == "host memory grew to the end, and what keeps it was not found"


def test_a_snapshot_without_device_memory_says_so() -> None:
    empty = replace(reports.build_snapshot_report(), summary=Summary(0), unchecked=())
    assert headline(empty) == ("The snapshot contains no device memory. No problems found.")


def test_free_memory_is_split_by_whether_it_can_be_released() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    assert facts(report, everything=False)[1] == (
        "cuda:0: free memory: 200 MiB can be released to the driver, 800 MiB share segments with "
        "live blocks, mostly of train.py:21"
    )
    pools = replace(device, private_free_bytes=3 * MIB)
    memory = replace(report.summary.memory, devices=(pools,))
    fact = facts(replace(report, summary=Summary(0, memory=memory)), everything=False)[1]
    assert fact.endswith("train.py:21, 3.00 MiB in private pools")


def test_a_device_without_memory_and_a_history_of_one_entry_have_no_row() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    nothing = tuple(MemoryPoint(k, None, 0, 0) for k in range(5))
    bare = replace(device, device="cuda:1", timeline=nothing)
    short = replace(device, device="cuda:2", timeline=device.timeline[:2], n_trace_events=1)
    memory = replace(report.summary.memory, devices=(device, bare, short))
    rows = device_series_rows(replace(report, summary=Summary(0, memory=memory)))
    assert [row.name for row in rows] == ["cuda:0 active", "cuda:0 reserved"]


def test_a_history_of_one_entry_has_no_peak(tmp_path: Path) -> None:
    b = SnapshotBuilder(max_entries=1)
    with b.frame("train.py", 3, "main"):
        blocks = [b.alloc(20 * MIB) for _ in range(5)]
        b.free(blocks[0])
    report = profkit.analyze(b.write(tmp_path / "one.snapshot.pickle"))
    assert headline(report).startswith(
        "By stacks, the 80.0 MiB active on cuda:0 are 100% from train.py:3."
    )
    (table,) = allocation_tables(report, everything=True)
    assert (table.title, table.total_bytes) == ("cuda:0 at the end", 80 * MIB)
    page = profkit.render(report, "html").decode()
    assert "Active memory, cuda:0" in page
    assert "cuda:0 at the end, by use" in page
    assert "at its peak" not in page


def test_shares_at_the_peak_are_of_the_blocks_that_were_live_then() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    # The history's own figure is of requests, and 500 MiB more than the live blocks.
    uses = (MemoryUse("activation", 3, 30_000 * MIB), MemoryUse("unknown", 1, 4000 * MIB))
    memory = replace(report.summary.memory, devices=(replace(device, peak_uses=uses, oom=()),))
    (peak, _) = allocation_tables(
        replace(report, summary=Summary(0, memory=memory)), everything=True
    )
    assert (peak.title, peak.total_bytes) == ("cuda:0 at the peak", 34_000 * MIB)


def test_the_headline_of_a_snapshot_names_uses_and_the_lines_of_the_largest() -> None:
    report = reports.build_snapshot_report()
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices

    def text(*peak_uses: MemoryUse, sites: tuple[AllocationSite, ...]) -> str:
        changed = replace(device, peak_uses=peak_uses, peak_sites=sites, oom=())
        return memory_sentences(
            replace(report, summary=Summary(0, memory=MemorySummary(devices=(changed,))))
        )[0]

    def site(line: int, mib: int, category: str) -> AllocationSite:
        where = Location("/home/me/optim.py", line, "step")
        return AllocationSite(where, (), 1, mib * MIB, category)

    uses = (
        MemoryUse("optimizer-state", 3, 500 * MIB),
        MemoryUse("gradient", 1, 240 * MIB),
        MemoryUse("unknown", 1, 220 * MIB),
        MemoryUse("workspace", 1, 40 * MIB),
    )
    earlier = AllocationSite(Location(), (), 4, 200 * MIB, is_before_recording=True)
    state = [site(*place, "optimizer-state") for place in ((82, 300), (84, 150), (99, 50))]
    sites = (state[0], site(7, 240, "gradient"), *state[1:], earlier)
    assert text(*uses, sites=sites) == (
        "By stacks, the 1,000 MiB peak of cuda:0 is 50% optimizer state (optim.py:82, :84), 24% "
        "gradients (optim.py:7) and 20% from before the recording."
    )
    assert text(uses[1], sites=()) == ("By stacks, the 240 MiB peak of cuda:0 is 100% gradients.")
    # The stacks of an earlier history tell the use of blocks that are older than this one.
    older = tuple(replace(site, is_before_recording=True) for site in sites)
    assert text(*uses, sites=older).endswith(
        "24% gradients (optim.py:7) and 20% from before the recording."
    )


@pytest.mark.parametrize(("layout", "has_gradients"), [("segments", False), ("2.8", True)])
def test_blocks_without_a_stack_are_of_the_backward_pass_in_a_history_alone(
    tmp_path: Path, layout: Layout, *, has_gradients: bool
) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 10, "train"):
        b.alloc(2 * MIB)
    b.alloc(100 * MIB)
    path = b.write(tmp_path / "memory.pickle", layout)
    assert ("gradients" in headline(profkit.analyze(path))) == has_gradients


@pytest.mark.parametrize(("until", "text"), [(61, ", before the end of step 61"), (None, "")])
def test_the_peak_of_the_process_is_stated_where_no_step_shows_it(
    tmp_path: Path, until: int | None, text: str
) -> None:
    peak = HostPeak(1 << 30, 400 << 20, 60, until)
    report = analyze(LiveBuilder(host_peak=peak).write(tmp_path / "train.memory.json"))
    assert (
        f"peak of the process 1.00 GiB, after step 60{text}; at the ends of steps it has 400 MiB "
        "at most" in list(memory_facts(report, everything=False))
    )
