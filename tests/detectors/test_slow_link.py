"""COM007 slow-link."""

from collections.abc import Callable, Sequence

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder

RULE = "slow-link"
FoundInJob = Callable[..., tuple[Finding, ...]]


def build_program(transfers_ms: Sequence[float], *, n_elements: int = 1 << 22) -> JobBuilder:
    """Four steps in which pairs of ranks reduce gradients, and then all ranks their norm."""
    job = JobBuilder(2 * len(transfers_ms))
    for _ in range(4):
        with job.step():
            job.compute(5 * MS)
            for pair, ms in enumerate(transfers_ms):
                ranks = (2 * pair, 2 * pair + 1)
                job.collective(
                    "all-reduce",
                    round(ms * MS),
                    ranks=ranks,
                    group=f"dp{pair}",
                    n_elements=n_elements,
                )
            job.collective("all-reduce", MS // 10, n_elements=1)

    return job


def test_a_group_is_named_that_is_slower_than_its_equals(found_in_job: FoundInJob) -> None:
    (finding,) = found_in_job(build_program([2, 2, 6]), RULE)
    assert finding.ranks == (4, 5)
    assert (finding.cost.per_step_ns, finding.cost.basis) == (4 * MS, "replay")
    # 2^22 elements of 4 bytes, each once, in 6 ms.
    assert finding.evidence["bus_bytes_per_s"] == round((1 << 24) / 6e-3)
    assert finding.message == (
        "Collectives of the group `group dp` (ranks 4, 5) transfer 2.8 GB/s, 33% of what equal "
        "ones do: that costs 4.00 ms per step."
    )


@pytest.mark.parametrize(
    ("transfers_ms", "n_elements"),
    [([2, 2, 2], 1 << 22), ([2, 2, 3], 1 << 22), ([2, 6], 1 << 22), ([2, 2, 6], 1 << 10)],
    ids=["equal", "little slower", "nothing to compare with", "bound by latency"],
)
def test_it_is_silent_where_no_link_is_slow(
    found_in_job: FoundInJob, transfers_ms: list[float], n_elements: int
) -> None:
    assert found_in_job(build_program(transfers_ms, n_elements=n_elements), RULE) == ()


def test_a_rank_that_joins_late_is_not_a_slow_link(found_in_job: FoundInJob) -> None:
    job = build_program([2, 2, 2])
    late = JobBuilder(6)
    for _ in range(4):
        with late.step():
            late.compute([5 * MS] * 5 + [12 * MS])
            for pair in range(3):
                ranks = (2 * pair, 2 * pair + 1)
                late.collective(
                    "all-reduce", 2 * MS, ranks=ranks, group=f"dp{pair}", n_elements=1 << 22
                )
    assert found_in_job(job, RULE) == ()
    assert found_in_job(late, RULE) == ()


def test_it_is_skipped_in_a_recording_of_one_rank(
    analyzed: Callable[..., Report], host_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.reason == "There are not several ranks."
