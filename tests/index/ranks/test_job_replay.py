"""Replays of jobs with changes, and what differences between ranks cost."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.analysis.options import AnalysisOptions
from profkit.api import study
from profkit.engine.job_context import JobContext
from profkit.index.ranks.job_replay import RankChange
from tests.corpus.recordings import CORPUS, needs_corpus
from tests.detectors.jobs import MS, JobBuilder

RECORDED = RankChange(idle=True)


def context(job: JobBuilder, folder: Path) -> JobContext:
    return of_files(sorted(job.write(folder).iterdir()))


def of_files(paths: Sequence[Path]) -> JobContext:
    options = AnalysisOptions(select=("COM004",))
    ranks = [study(path, options).build_rank_report() for path in paths]
    recorded = [rank for rank in ranks if rank is not None]
    return JobContext(tuple(sorted(recorded, key=lambda rank: rank.rank)))


def recorded_ns(ctx: JobContext) -> int:
    """From the start of the first step on the last rank to the end of the last on any."""
    clocks, calls = ctx.matches.clocks, ctx.matches.calls
    activities = [rank.activity for rank in ctx.ranks if rank.activity is not None]
    starts = [activity.step_starts_ns[:1] for activity in activities]
    ends = [activity.step_ends_ns[-1:] for activity in activities]
    clock = [calls.clock[i : i + 1] for i in range(len(ctx.ranks))]
    at = [
        [
            int(clocks.corrected(c, moment_ns)[0])
            for c, moment_ns in zip(clock, moments, strict=True)
        ]
        for moments in (starts, ends)
    ]
    return max(at[1]) - max(at[0])


times = st.lists(st.integers(1, 9), min_size=3, max_size=3)
what = st.tuples(st.sampled_from(["all-reduce", "hidden", "pair", "send", "back"]), times)


@settings(max_examples=10, deadline=None)
@given(st.lists(what, min_size=1, max_size=6))
def test_a_replay_without_changes_takes_what_was_recorded(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple[str, list[int]]]
) -> None:
    job = JobBuilder(3)
    for _ in range(2):
        with job.step():
            for kind, slow in program:
                job.compute([duration_ms * MS for duration_ms in slow])
                if kind == "send":
                    job.send(0, 1, MS // 2)
                elif kind == "back":
                    job.send(1, 0, MS // 2)
                elif kind == "pair":
                    job.collective("all-gather", MS, ranks=(1, 2), group="1")
                else:
                    job.collective("all-reduce", MS, awaited=kind != "hidden")
    ctx = context(job, tmp_path_factory.mktemp("job"))
    replay = ctx.replay
    every = tuple(range(3))

    lengths = replay.lengths_ns(
        [RECORDED, *(RankChange(medians=(rank,)) for rank in every), RankChange(every)]
    )
    assert lengths[0] == recorded_ns(ctx)
    assert (lengths[1:4] <= lengths[0] + 1).all(), "less time of its own makes no rank later"


def test_ranks_with_equal_time_of_their_own_would_take_their_mean(tmp_path: Path) -> None:
    job = JobBuilder(2)
    for _ in range(3):
        with job.step():
            job.compute([9 * MS, 3 * MS])
            job.collective("all-reduce", MS)
    what_if = context(job, tmp_path).what_if
    assert what_if.actual_ns - what_if.even_ns == 3 * 3 * MS
    summary = what_if.summarize()
    assert summary is not None
    assert (summary.n_steps, summary.unexplained_share, summary.stages) == (3, 0.0, ())
    assert summary.ratio == round(summary.actual_ns / summary.ideal_ns, 4)
    assert summary.ranks[0].ranks == (0,)
    assert summary.ranks[0].saving_ns == 3 * MS
    assert summary.ranks[0].share == 1.0


def test_a_slow_transfer_takes_the_median_of_the_others(tmp_path: Path) -> None:
    job = JobBuilder(2)
    for step in range(5):
        with job.step():
            job.compute(MS)
            job.collective("all-reduce", 7 * MS if step == 3 else 2 * MS)
    ctx = context(job, tmp_path)
    lengths = ctx.replay.lengths_ns(
        [RankChange(), RankChange(transfers=True), RankChange(links=(3,)), RankChange(links=(2,))]
    )
    assert (lengths[0] - lengths[1:]).tolist() == [5 * MS, 5 * MS, 0]


def test_the_stages_of_a_pipeline_are_chains_that_send_both_ways(tmp_path: Path) -> None:
    job = JobBuilder(4)
    for _ in range(2):
        with job.step():
            for first in (0, 1):
                job.compute(MS)
                job.send(first, first + 2, MS // 4)
                job.compute(MS)
                job.send(first + 2, first, MS // 4)
            job.collective("all-reduce", MS, ranks=(0, 1), group="1")

    ctx = context(job, tmp_path)
    assert ctx.what_if.stages == [[0, 1], [2, 3]]

    ring = JobBuilder(3)
    for _ in range(2):
        with ring.step():
            for rank in range(3):
                ring.compute(MS)
                ring.send(rank, (rank + 1) % 3, MS // 4)
    assert context(ring, tmp_path / "ring").what_if.stages == []


def test_too_few_matches_tell_nothing(tmp_path: Path) -> None:
    job = JobBuilder(2, numbered=False)
    for _ in range(4):
        with job.step():
            job.compute(MS)
            job.collective("all-reduce", MS)
    kernels = [event for event in job.ranks[1].events if event.name.startswith("nccl")]
    for kernel in kernels[:3]:
        job.ranks[1].events.remove(kernel)
    assert context(job, tmp_path).what_if.summarize() is None


@needs_corpus
@pytest.mark.parametrize(
    ("name", "ratio", "worker", "stage"),
    [("bytedance-ST", 1.1787, 0.0314, 1.2194), ("bytedance-AR", 1.9730, 1.0017, -0.0012)],
)
def test_slowdowns_agree_with_the_authors_of_the_recordings(
    name: str, ratio: float, worker: float, stage: float
) -> None:
    ctx = of_files(sorted((CORPUS / "ranks" / name).glob("rank*.json.gz")))
    summary = ctx.what_if.summarize()
    assert summary is not None
    assert summary.ratio == pytest.approx(ratio, rel=0.01)
    assert summary.ranks[0].share == pytest.approx(worker, rel=0.015, abs=0.002)
    assert summary.stages[-1].share == pytest.approx(stage, rel=0.01, abs=0.001)
    # 1.9% and 0.7% of the time are launch delays that the authors remove as well.
    assert 0 < summary.unexplained_share < 0.03
    assert ctx.what_if.recorded_ns == pytest.approx(recorded_ns(ctx), abs=MS)
