"""The grid of ranks and steps."""

from dataclasses import replace

import pytest

from profkit.model.report import Report
from profkit.present.rank_timeline import MAX_RANKS, rank_timeline
from profkit.present.step_heat import MAX_COLUMNS, MAX_ROWS, build_step_heat
from tests import job_traces
from tests.job_traces import LATE_NS, N_STEPS, repeat_ranks


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return job_traces.job(tmp_path_factory.mktemp("job"))


def test_a_cell_is_a_step_of_a_rank(report: Report) -> None:
    heat = build_step_heat(report)
    assert heat is not None
    assert (heat.row_labels, heat.column_labels) == (("0", "1"), ("0", "1", "2", "3"))
    for rank, cells in zip(report.ranks, heat.cells, strict=True):
        assert [cell and cell.time_ns for cell in cells] == [*rank.steps_ns]
        assert [cell and cell.wait_ns for cell in cells] == [*rank.steps_wait_ns]


def test_without_waiting_the_late_rank_stands_out(report: Report) -> None:
    heat = build_step_heat(report, own=True)
    assert heat is not None
    (first, last) = heat.cells
    own_ns = report.ranks[0].steps_ns[0] - LATE_NS
    assert heat.median_ns == own_ns
    assert {cell and cell.level for cell in first} == {2}, "within 3% of the median"
    assert all(cell is not None and cell.level > 2 for cell in last)


def test_steps_that_a_rank_has_not_are_empty(report: Report) -> None:
    short = replace(
        report.ranks[1],
        **{
            name: getattr(report.ranks[1], name)[1:]
            for name in ("step_names", "steps_ns", "steps_wait_ns")
        },
    )
    heat = build_step_heat(replace(report, ranks=(report.ranks[0], short)))
    assert heat is not None
    assert [cell is None for cell in heat.cells[1]] == [True, False, False, False]
    assert len(heat.columns) == N_STEPS


def test_neighbors_among_many_ranks_and_steps_share_a_cell_with_the_longest(report: Report) -> None:
    many = repeat_ranks(report, 1000, 500)
    heat = build_step_heat(many, own=True)
    assert heat is not None
    assert len(heat.rows) <= MAX_ROWS
    assert len(heat.columns) <= MAX_COLUMNS
    assert sum(map(len, heat.rows)) == 1000
    assert heat.rows[0] == tuple(range(32)), "as many as powers of two, like hosts have"
    assert all(cell is not None and cell.rank == 17 for cell in heat.cells[0])

    at = next(place for place, names in enumerate(heat.columns) if "ProfilerStep#100" in names)
    of_17 = dict(zip(many.ranks[17].step_names, many.ranks[17].steps_ns, strict=True))
    waits = dict(zip(many.ranks[17].step_names, many.ranks[17].steps_wait_ns, strict=True))
    longest = max(of_17[name] - waits[name] for name in heat.columns[at])
    cell = heat.cells[0][at]
    assert cell is not None
    assert cell.time_ns - cell.wait_ns == longest


def test_a_job_without_steps_has_no_grid(report: Report) -> None:
    ranks = tuple(
        replace(rank, step_names=(), steps_ns=(), steps_wait_ns=()) for rank in report.ranks
    )
    assert build_step_heat(replace(report, ranks=ranks)) is None


def test_the_timeline_has_a_lane_for_each_rank(report: Report) -> None:
    shown = rank_timeline(report)
    assert shown is not None
    assert [lane.label for lane in shown.lanes] == ["rank 0 · one", "rank 1 · other"]
    assert [name for name, _, _ in shown.steps] == [*report.ranks[0].step_names]
    late = [site for site in shown.sites if site.kind == "late"]
    assert [site.name for site in late] == ["all-reduce · 0: host is late"]


def test_of_many_ranks_the_ones_that_others_waited_for_have_lanes(report: Report) -> None:
    many = repeat_ranks(report, 1000, 1)
    shown = rank_timeline(many)
    assert shown is not None
    assert len(shown.lanes) == MAX_RANKS
    assert all(int(lane.label.split()[1]) % 2 for lane in shown.lanes)


def test_reports_on_one_recording_and_from_json_have_none(report: Report) -> None:
    assert rank_timeline(replace(report, lanes=None)) is None
