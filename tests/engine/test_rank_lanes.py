"""What each rank of a job did when, on one clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.engine.rank_lanes import MAX_SLICES, bounded
from profkit.model.rank_lanes import JobLanes, RankClock, RankLane
from profkit.model.report import Report
from profkit.model.timeline import Slices
from tests import job_traces
from tests.job_traces import CLOCK_NS, LATE_NS, N_STEPS, REDUCE_NS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return job_traces.job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def lanes(report: Report) -> JobLanes:
    assert report.lanes is not None
    return report.lanes


def of_kind(lanes: JobLanes, lane: RankLane, kind: str) -> list[tuple[int, int]]:
    sites = [place for place, site in enumerate(lanes.sites) if site.kind == kind]
    is_at_site = np.isin(lane.slices.site, sites)
    starts, ends = (
        lane.slices.start_ns[is_at_site].tolist(),
        lane.slices.end_ns[is_at_site].tolist(),
    )
    return [*zip(starts, ends, strict=True)]


def test_waiting_ends_when_the_last_rank_starts_on_the_common_clock(lanes: JobLanes) -> None:
    first, last = lanes.lanes
    waits, late = of_kind(lanes, first, "waiting"), of_kind(lanes, last, "late")
    assert [end - start for start, end in waits] == [LATE_NS] * N_STEPS
    assert waits == late, "the others wait for exactly as long as it is late"
    assert of_kind(lanes, last, "waiting") == of_kind(lanes, first, "late") == []
    moved = of_kind(lanes, last, "transfer")
    assert moved == of_kind(lanes, first, "transfer")
    assert [end - start for start, end in moved] == [REDUCE_NS - LATE_NS] * N_STEPS
    assert [start for start, _ in moved] == [end for _, end in waits]
    assert [lane.clock.offset_ns for lane in lanes.lanes] == [0, CLOCK_NS]


def test_sites_have_the_totals_of_all_ranks(lanes: JobLanes) -> None:
    by_kind = {site.kind: site for site in lanes.sites}
    assert (by_kind["waiting"].n, by_kind["waiting"].total_ns) == (N_STEPS, N_STEPS * LATE_NS)
    assert (by_kind["waiting"].collective, by_kind["waiting"].group) == ("all-reduce", "0")
    assert by_kind["transfer"].n == 2 * N_STEPS
    assert by_kind["late"].why == "host"
    assert "communication" not in by_kind, "its own row has no collectives"


def test_slices_of_one_row_do_not_overlap(lanes: JobLanes) -> None:
    for lane in lanes.lanes:
        slices = lane.slices
        same = slices.row[1:] == slices.row[:-1]
        assert (np.diff(slices.row) >= 0).all()
        assert (slices.start_ns[1:][same] >= slices.end_ns[:-1][same]).all()


def test_each_step_has_its_waiting(report: Report, lanes: JobLanes) -> None:
    first, last = report.ranks
    assert first.steps_wait_ns == (LATE_NS,) * N_STEPS
    assert last.steps_wait_ns == (0,) * N_STEPS
    assert first.step_names == tuple(f"ProfilerStep#{number}" for number in range(N_STEPS))
    for rank, lane in zip(report.ranks, lanes.lanes, strict=True):
        assert tuple(end - start for start, end in lane.steps) == rank.steps_ns


def test_a_clock_is_corrected_for_offset_and_drift() -> None:
    clock = RankClock(offset_ns=500, drift=1e-3, origin_ns=10_000)
    for true_ns in (10_000, 2_010_000, 5_000_000):
        shown = true_ns + 500 + round(1e-3 * (true_ns - 10_000))
        assert abs(clock.corrected(shown) - true_ns) <= 1


@given(st.integers(1, 6_000), st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_slices_are_bounded_and_keep_their_time(n: int, seed: int, n_rows: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, gaps = rng.integers(1, 10_000, n), rng.integers(0, 10_000, n)
    ends = np.cumsum(lengths + gaps)
    row = np.sort(rng.integers(0, n_rows, n)).astype(np.int32)
    ones = np.ones(n, dtype=np.int64)
    site, event = np.zeros((2, n), dtype=np.int32)
    slices = Slices(row, ends - lengths, ends, lengths, ones, lengths, site, event)
    shown = bounded(slices, MAX_SLICES)
    assert len(shown) <= MAX_SLICES
    assert (shown.n.sum(), shown.busy_ns.sum()) == (n, lengths.sum())
    assert (shown.start_ns.min(), shown.end_ns.max()) == (slices.start_ns[0], ends[-1])
