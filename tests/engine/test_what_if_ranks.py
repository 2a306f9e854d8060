"""What the step of a job would take with changes of its ranks."""

from pathlib import Path

import pytest

import profkit
from profkit.errors import LoadError, UsageError
from profkit.model.what_if import JobPrediction
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder


def straggler(folder: Path) -> Path:
    """Steps in which rank 1 computes 9 ms and the others 3 ms, then an all-reduce of 2 ms."""
    job = JobBuilder(3)
    for _ in range(3):
        with job.step():
            job.compute([3 * MS, 9 * MS, 3 * MS])
            job.collective("all-reduce", 2 * MS)
            job.collective("all-gather", MS, group="tp")
    return job.write(folder)


def savings(found: JobPrediction) -> dict[tuple[object, ...], int]:
    return {
        (change.kind, *change.ranks): case.saving_ns
        for case in found.cases
        for change in case.changes
    }


def test_without_a_change_each_usual_one_is_predicted_alone(tmp_path: Path) -> None:
    prediction = profkit.what_if_ranks(straggler(tmp_path / "job"))

    assert (prediction.n_steps, prediction.ranks, prediction.matched_share) == (3, (0, 1, 2), 1.0)
    assert savings(prediction) == {
        ("rank", 1): 6 * MS,
        ("even", 0, 1, 2): 4 * MS,
        ("bandwidth",): 3 * MS // 2,
        ("no-waiting",): 0,
    }
    assert [case.saving_ns for case in prediction.cases] == [6 * MS, 4 * MS, 3 * MS // 2, 0]
    assert all(case.after_ns == prediction.before_ns - case.saving_ns for case in prediction.cases)

    report = profkit.analyze(tmp_path / "job")
    (finding,) = (finding for finding in report.findings if finding.name == "straggling-rank")
    assert finding.cost.per_step_ns == 6 * MS
    assert report.collectives is not None
    assert report.collectives.slowdown is not None
    assert prediction.before_ns == report.collectives.slowdown.actual_ns


def test_chosen_changes_are_made_at_once(tmp_path: Path) -> None:
    folder = straggler(tmp_path / "job")
    (both,) = profkit.what_if_ranks(folder, ranks=[1], bandwidth=4).cases
    assert both.saving_ns == 6 * MS + 3 * MS * 3 // 4
    assert [change.kind for change in both.changes] == ["rank", "bandwidth"]
    (slower,) = profkit.what_if_ranks(folder, bandwidth={"all-gather": 0.5}).cases
    assert slower.saving_ns == -MS
    assert slower.changes[0].n_collectives == 3
    (of_group,) = profkit.what_if_ranks(folder, bandwidth={"group t*": 2}).cases
    assert of_group.saving_ns == MS // 2


def test_stages_take_the_mean_of_all_ranks(tmp_path: Path) -> None:
    job = JobBuilder(2)
    for _ in range(3):
        with job.step():
            job.compute([2 * MS, 0])
            job.send(0, 1, MS // 4)
            job.compute([0, 6 * MS])
            job.send(1, 0, MS // 4)
    folder = job.write(tmp_path / "job")
    prediction = profkit.what_if_ranks(folder, stages=[1])

    (case,) = prediction.cases
    assert case.changes[0].ranks == (1,)
    # Both stages have 8 ms, and what launches take.
    assert case.saving_ns == pytest.approx(2 * MS, abs=MS // 50)

    (alone,) = profkit.what_if_ranks(folder, waiting=False).cases
    # The longer stage and its two transfers remain.
    assert alone.after_ns == pytest.approx(6 * MS + 2 * MS // 4, abs=MS // 50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": [5]}, "has no rank 5"),
        ({"stages": [0]}, "has no stage 0"),
        ({"bandwidth": {"broadcast": 2}}, "No matched collective"),
        ({"bandwidth": 0}, "no number above 0"),
        ({"bandwidth": {"all-gather": "2"}}, "no number above 0"),
        ({"waiting": None}, "waiting"),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    folder = straggler(tmp_path / "job")
    with pytest.raises(UsageError, match=message):
        profkit.what_if_ranks(folder, **changes)  # type: ignore[arg-type]


def test_one_rank_is_not_a_job(tmp_path: Path) -> None:
    folder = straggler(tmp_path / "job")
    with pytest.raises(UsageError, match="not belong to a job of several ranks"):
        profkit.what_if_ranks(folder / "rank0.pt.trace.json.gz")
    with pytest.raises(LoadError):
        profkit.what_if_ranks(tmp_path / "none.json")
    alone = [TraceBuilder(head={"distributedInfo": {"rank": r, "world_size": 2}}) for r in (0, 1)]
    for rank, b in enumerate(alone):
        with b.step():
            b.compute("aten::mm", MS)
        b.write(tmp_path / f"rank{rank}.json")
    with pytest.raises(UsageError):
        profkit.what_if_ranks([tmp_path / "rank0.json", tmp_path / "rank1.json"])
