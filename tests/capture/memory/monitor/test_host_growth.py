"""Growth of host memory: what is excluded from it, and what it is attributed to."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from profkit.capture.memory.monitor import host_growth, host_objects
from profkit.capture.memory.monitor.budget import Budget, Clock
from profkit.capture.memory.monitor.growing_holders import GrowingHolder, View
from profkit.capture.memory.monitor.host_growth import HostGrowthTracker, HostScan
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.live_tensors import LiveTensors
from profkit.capture.memory.monitor.object_sizes import TypeTotals
from profkit.capture.memory.monitor.sampler import Sampler
from profkit.capture.memory.monitor.series import Sample, Series, TracedSteps
from profkit.capture.memory.monitor.tracemalloc_lines import COMPILER_LINE, NO_LINE
from profkit.capture.process.malloc_stats import Allocated
from profkit.capture.recording.session import sessions
from profkit.index.trend import Trend, is_rising
from profkit.model.capture_info import Compiled
from profkit.model.live_memory import Chain, TensorShape

PLACE = (__file__, 1, "step")
TREND = Trend(200_000.0, 1, 60)
RECOMPILED = Compiled(
    number="0/68", code=("/home/me/net.py", 36, "forward"), is_users=True, caller=PLACE,
    start_ns=0, dur_ns=1, n_ops=3, again=True,
    reason="0/67: self.calls == 68  # self.calls += 1  # net.py:37 in forward (HINT: none)",
    failure="",
)  # fmt: skip


class Heap:
    """A heap with so many bytes."""

    def __init__(self) -> None:
        self.bytes = 1000

    def allocated(self) -> Allocated:
        return Allocated(self.bytes, 10)


@pytest.fixture
def heap() -> Heap:
    return Heap()


@pytest.fixture
def traced() -> list[int]:
    return [0]


@pytest.fixture
def sampler(heap: Heap, traced: list[int]) -> Sampler:
    sampler = Sampler(Clock(), LiveTensors(), lambda: traced[0])
    sampler._heap = heap  # type: ignore[assignment]
    return sampler


def measured(sampler: Sampler) -> int:
    heap = sampler._read_heap()
    assert heap is not None
    return heap.bytes


def test_what_is_kept_while_open_is_excluded_and_records_of_tracing_are_at_all_times(
    sampler: Sampler, heap: Heap, traced: list[int]
) -> None:
    with sampler.excluding_own():
        heap.bytes += 400  # an inspection keeps this
    assert measured(sampler) == 1000
    heap.bytes += 5000  # a trace grows
    traced[0] = 5000
    assert measured(sampler) == 1000
    with sampler.excluding_own():
        heap.bytes -= 5000  # and is freed
        traced[0] = 0
    assert measured(sampler) == 1000


def test_what_the_monitor_retains_at_a_boundary_is_excluded_once(
    sampler: Sampler, heap: Heap
) -> None:
    with sampler.excluding_boundary():
        heap.bytes += 1500  # a sample
        with sampler.excluding_own():
            heap.bytes += 400  # an inspection
    assert measured(sampler) == 1000

    heap.bytes += 70  # the program's
    with sampler.excluding_own():
        heap.bytes += 400
    assert measured(sampler) == 1070


def test_an_error_at_a_boundary_leaves_nothing_open(sampler: Sampler, heap: Heap) -> None:
    with contextlib.suppress(ValueError), sampler.excluding_boundary():
        heap.bytes += 1500
        raise ValueError
    with sampler.excluding_own():
        heap.bytes += 400
    assert measured(sampler) == 1000


def test_beyond_the_budget_a_boundary_is_not_measured(heap: Heap, sampler: Sampler) -> None:
    sampler._clock = Clock(Budget({"own": 0.0}, {"own": 0.0}))
    with sampler.excluding_boundary():
        heap.bytes += 1500  # the first reading shows its cost
    assert measured(sampler) == 1000
    with sampler.excluding_boundary():
        heap.bytes += 1500
    assert measured(sampler) == 2500


@pytest.mark.parametrize("pace", [0, 100])
def test_a_jump_during_tracing_is_excluded_and_the_growth_stays(
    sampler: Sampler, heap: Heap, pace: int
) -> None:
    series = Series()
    for step in range(1, 9):
        heap.bytes = 1000 + pace * step
        series.add(Sample(step, 0, {}, heap=sampler._read_heap()))
    heap.bytes = 1000 + pace * 16 + 7000
    sampler.exclude_jump(16, series)
    assert measured(sampler) == 1000 + pace * 16
    heap.bytes -= 3000
    sampler.exclude_jump(16, series)
    assert measured(sampler) == 1000 + pace * 16 - 3000


def test_the_memory_of_a_recording_is_taken_off_the_samples_that_were_taken_until_it_was_written(
    sampler: Sampler, heap: Heap, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = Series()

    def sample(step: int, recording_bytes: int) -> None:
        heap.bytes = 1000 + 100 * step + recording_bytes
        now = Sample(step, 0, {}, heap=sampler._read_heap())
        sampler.exclude_recording(now, series)
        series.add(now)

    for step in (1, 2, 3):
        sample(step, 0)
    sampler.note_tracing(4)
    for step in range(5, 10):
        sample(step, 9000)
    monkeypatch.setattr(sessions, "freed_bytes", sessions.freed_bytes + 12_000)
    for step in range(12, 16):
        sample(step, 0)

    steps, n_bytes = series.heap()
    assert (n_bytes == 1000 + 100 * steps).all()

    # What the program frees later is its own, and more than a recording had is, too.
    sample(16, -500)
    assert series.heap()[1][-2:].tolist() == [2500, 2100]
    monkeypatch.setattr(sessions, "freed_bytes", sessions.freed_bytes + 100)
    sample(17, -900)
    assert series.heap()[1][-2:].tolist() == [2000, 1800]


KIB = 1024


@pytest.mark.parametrize(
    ("period", "is_seen"), [(13, False), (16, False), (24, False), (100, True)], ids=str
)
def test_what_is_cleared_now_and_then_is_not_seen_to_grow(period: int, *, is_seen: bool) -> None:
    steps = np.array([*range(1, 19), *range(26, 52)])
    host = steps, 1000.0 * ((steps - 20) % period)  # cleared once in the traced steps
    series = Series(traced=[TracedSteps(18, 26, 80 * KIB)])
    assert series.is_seen_without_tracing(host, Trend(1000.0, 1, 51)) is is_seen


@pytest.mark.parametrize(
    ("last_step", "step_bytes", "is_reported"),
    [(33, 16 * KIB, False), (49, 16 * KIB, False), (50, 16 * KIB, True), (33, 64 * KIB, True)],
    ids=["few steps", "one less", "three times as many as traced", "more than tracing leaves"],
)
def test_growth_must_show_where_nothing_was_traced(
    last_step: int, step_bytes: int, *, is_reported: bool
) -> None:
    monitor = LeakMonitor("test", "user")
    for step in (*range(1, 19), *range(26, last_step + 1)):
        heap = Allocated(step_bytes * step, 0)
        monitor._instruments.series.add(Sample(step, 0, {}, n_nodes=0, heap=heap))
    trend = monitor._instruments.host_trend(is_final=True)
    assert trend is not None
    assert trend.per_step == step_bytes
    monitor._instruments.series.traced.append(TracedSteps(18, 26, tracing_bytes=80 * KIB))
    assert (monitor._instruments.host_trend(is_final=True) == trend) is is_reported
    assert monitor._instruments.host_trend() == trend  # it is still examined


def test_the_heap_is_read_as_often_as_the_budget_allows_and_over_the_whole_run(heap: Heap) -> None:
    nothing = Budget({"heap": 0.0}, {"heap": 0.0})
    sampler = Sampler(Clock(nothing), LiveTensors(), lambda: 0)
    sampler._heap = heap  # type: ignore[assignment]
    read = [step for step in range(1, 101) if sampler._read_heap_if_affordable(step) is not None]
    assert read == [1, 2, 3, 4, 6, 8, 11, 15, 20, 26, 34, 45, 59, 77]


def test_whether_a_series_rises_is_told_by_its_latest_samples() -> None:
    series = Series()
    for step, n_nodes in enumerate((9, 8, 7, None, 7, 8, None, 9), start=1):
        series.add(Sample(step, 0, {}, n_nodes))
    assert series.latest_nodes().tolist() == [7, 7, 8, 9]
    assert is_rising(series.latest_nodes())
    assert series.nodes()[1].tolist()[-4:] == [7, 7, 8, 9]


def tracker(per_step: dict[tuple[str, int, str], float]) -> HostGrowthTracker:
    """Return a tracker that found growth in strings, with the pace of each allocating line."""
    tracker = HostGrowthTracker()
    tracker._scans = [
        HostScan(step, {"str": TypeTotals(step, 90_000 * step)}, 0, []) for step in (10, 20)
    ]
    tracker.growth.per_step = per_step
    return tracker


Recompiled = Callable[[Compiled | None], None]


@pytest.fixture
def recompiled(monkeypatch: pytest.MonkeyPatch) -> Recompiled:
    def set_most(compiled: Compiled | None) -> None:
        most = None if compiled is None else (compiled, 64)
        monkeypatch.setattr(host_growth, "find_most_recompiled", lambda: most)

    return set_most


def test_growth_that_the_compiler_allocates_is_of_the_call_that_compiles_again(
    recompiled: Recompiled,
) -> None:
    recompiled(RECOMPILED)
    leak = tracker({COMPILER_LINE: 150_000.0, PLACE: 40_000.0}).find_leak(TREND)
    assert leak is not None
    assert (leak.stack[0].file, leak.stack[0].line, leak.n) == (*PLACE[:2], 64)
    (holder,) = leak.chains
    assert holder.name == "compiled versions of forward"
    assert holder.scope == " (the latest because of `self.calls == 68`)"
    assert leak.per_step_bytes == 200_000


@pytest.mark.parametrize(
    ("per_step", "compiled"),
    [
        ({COMPILER_LINE: 150_000.0}, None),
        ({COMPILER_LINE: 90_000.0, NO_LINE: 110_000.0}, RECOMPILED),
        ({COMPILER_LINE: 90_000.0}, RECOMPILED),
    ],
)
def test_it_is_not_if_nothing_is_compiled_again_or_most_of_it_is_allocated_elsewhere(
    per_step: dict[tuple[str, int, str], float], compiled: Compiled | None, recompiled: Recompiled
) -> None:
    recompiled(compiled)
    leak = tracker(per_step).find_leak(TREND)
    assert leak is not None
    assert (leak.type, leak.chains, leak.stack) == ("str", (), ())


CLIPS = GrowingHolder(
    180_000.0,
    (Chain("instance", ("__main__.trainer", ".clips"), name="trainer.clips"),),
    view=View(TensorShape("uint8", (64, 64, 3), 1), 196_608),
)


@pytest.mark.parametrize(
    ("holders", "limit_bytes"),
    [
        ([CLIPS._replace(limit_bytes=3e6)], 3_000_000),
        ([CLIPS._replace(limit_bytes=3e6), CLIPS._replace(per_step=100.0)], 3_000_000),
        ([CLIPS._replace(limit_bytes=3e6), CLIPS], None),
        ([CLIPS], None),
    ],
    ids=["a limit", "and little without", "and much without", "no limit"],
)
def test_growth_has_the_limit_of_what_holds_it(
    holders: list[GrowingHolder], limit_bytes: int | None
) -> None:
    causes = tracker({PLACE: 150_000.0})
    causes._scans[-1].holders.extend(holders)
    leak = causes.find_leak(TREND)
    assert leak is not None
    assert leak.limit_bytes == limit_bytes
    assert (leak.shape, leak.storage_bytes) == (TensorShape("uint8", (64, 64, 3), 1), 196_608)
    assert leak.chains[0].name == "trainer.clips"


def test_views_are_counted_without_the_arrays_that_they_retain() -> None:
    tracker = HostGrowthTracker()
    tracker._scans = [
        HostScan(step, {"numpy.ndarray": TypeTotals(2 * step, 200_000 * step)}, 0, [])
        for step in (10, 20)
    ]
    tracker._scans[-1].holders.append(CLIPS)
    tracker.growth.per_step = {}
    leak = tracker.find_leak(Trend(200_000.0, 10, 60))
    assert leak is not None
    assert (leak.type, leak.n) == ("numpy.ndarray", round(10_000_000 / 196_608))


@pytest.mark.parametrize(
    ("changes", "owner"),
    [({}, "PIL.Image.Image"), ({"kind": "unknown"}, ""), ({"is_library": True}, "")],
    ids=["of the program", "without a name", "of a library"],
)
def test_native_growth_has_the_container_that_grows_by_objects_of_a_library(
    changes: dict[str, object], owner: str
) -> None:
    tracker = HostGrowthTracker()
    tracker._scans = [HostScan(step, {"str": TypeTotals(1, 1)}, 0, []) for step in (10, 20)]
    tracker.growth.per_step = {PLACE: 500.0}
    chain = replace(CLIPS.chains[0], **changes)  # type: ignore[arg-type]
    tracker._scans[-1].holders.append(GrowingHolder(500.0, (chain,), owner="PIL.Image.Image"))
    leak = tracker.find_leak(TREND)
    assert leak is not None
    assert leak.kind == "native"
    assert leak.chains == ((chain,) if owner else ())
    assert leak.type == owner


def test_what_a_scan_retains_for_the_next_one_is_not_growth() -> None:
    tracker = HostGrowthTracker()
    # Enough entries also where other tests have left many objects.
    held = [[None] * host_objects._MIN_ENTRIES_OF_MANY for _ in range(5_000)]
    tracker.scan(1)
    tracker.scan(2)
    tracker.scan(3)
    assert len(tracker._holders._containers.ids) > len(held)
    arrays = [scan.by_type.get("numpy.ndarray", TypeTotals()).bytes for scan in tracker._scans]
    assert arrays[1] - arrays[0] < 2 * 8 * len(held)


def test_what_graphs_save_is_not_growth_of_the_host_between_its_measurements() -> None:
    series = Series()
    for step in range(1, 21):
        graph_bytes = 6_000_000 if step % 8 == 1 else None
        heap = Allocated(6_000_000 + 1_000 * step, 0)
        series.add(Sample(step, 0, {}, n_nodes=0, graph_bytes=graph_bytes, heap=heap))
    steps, host = series.unexplained_heap(0.0)
    assert host.tolist() == (1_000.0 * steps).tolist()


def test_the_mean_of_new_blocks_counts_the_types_that_grow() -> None:
    tracker = HostGrowthTracker()
    # Other objects come and go meanwhile: a part of them is searched, and the rest estimated.
    for step, n, n_ints in ((19, 0, 18_000), (33, 3_600, 17_400)):
        by_type = {
            "str": TypeTotals(n, 306 * n + 10**6, 314 * n, n),
            "int": TypeTotals(n_ints, 28 * n_ints, 32 * n_ints, n_ints),
            "tuple": TypeTotals(70_000 + n_ints, 10**7 + n // 9, 10**7 + n // 9, n // 9),
        }
        tracker._scans.append(HostScan(step, by_type, 10**6 + n, []))
    assert tracker.block_bytes == pytest.approx(314)


def test_containers_alone_show_what_grows_with_its_holder_and_types() -> None:
    tracker = HostGrowthTracker()
    records: dict[int, list[dict[str, str]]] = {}
    for step in range(60):
        if step in {20, 40}:
            tracker.scan_containers(step)
        records[step] = [{"text": f"sample {step} {n}"} for n in range(50)]

    of_one = sys.getsizeof(records[1]) + 50 * (184 + sys.getsizeof("sample 10 10"))
    assert tracker.were_containers_compared
    assert tracker.have_containers_grown(Trend(float(of_one), 1, 60))
    assert not tracker.have_containers_grown(Trend(3.0 * of_one, 1, 60))
    assert not tracker.have_containers_grown(None)

    leak = tracker.find_leak(Trend(float(of_one), 1, 60))
    assert leak is not None
    assert (leak.type, leak.chains[0].name.rpartition(".")[2]) == ("dict", "records")
    held = sum(holder.per_step for holder in tracker._scans[-1].holders)
    assert held == pytest.approx(of_one, rel=0.1)

    # Scans of all objects are compared with each other alone.
    tracker.forget_containers()
    assert tracker.n_scans == 0
    tracker.scan(60)
    tracker.forget_containers()
    assert tracker.n_scans == 1
