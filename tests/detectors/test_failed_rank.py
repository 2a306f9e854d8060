"""COM012 failed-rank."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit import load
from profkit.api import analyze
from profkit.model.report import Report
from profkit.model.trace import Trace
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder
from tests.detectors.jobs import MS, JobBuilder
from tests.flight import NS, S, build_entry, dump, own, waiting, written

RULE = "failed-rank"
RAISED = {
    "at_ns": NS + 5 * S,
    "what": "raised ValueError: bad batch. Again",
    "file": "/home/me/train.py",
    "line": 12,
    "is_consequence": False,
    "has_died": False,
}
LOST_PEER = {
    **RAISED,
    "at_ns": NS + 4 * S,
    "what": "raised RuntimeError: Connection closed by peer",
    "is_consequence": True,
}
DIED = {**RAISED, "what": "ended without a Python exception", "file": "", "has_died": True}


def job(folder: Path, *failures: dict[str, object] | None, n_traces: int = 2) -> Report:
    """Return the report on ranks with traces and with dumps at the end of the program."""
    built = JobBuilder(len(failures))
    for _ in range(3):
        with built.step():
            built.compute(3 * MS)
            built.collective("all-reduce", MS)
    built.write(folder / "job")
    for rank in range(n_traces, len(failures)):
        next((folder / "job").glob(f"*rank{rank}*")).unlink()

    trace = load(folder / "job" / "rank0.pt.trace.json.gz")
    assert isinstance(trace, Trace)
    begins_ns = trace.base_ns
    calls = dump([build_entry(1, time_created_ns=begins_ns), waiting(2, time_created_ns=begins_ns)])
    dumps = [
        own(
            calls if failure is None or not failure["has_died"] else dump([]),
            rank,
            len(failures),
            written_ns=begins_ns + MS,
            failure=failure,
        )
        for rank, failure in enumerate(failures)
    ]
    written(folder / "job", *dumps)
    return analyze(folder / "job", select=[RULE])


def test_the_rank_that_failed_by_itself_comes_first(tmp_path: Path) -> None:
    report = job(tmp_path, LOST_PEER, RAISED)
    (finding,) = report.findings
    assert finding.message == (
        "Rank 1 raised ValueError: bad batch. Again at train.py:12. Rank 0 ended after it."
    )
    assert (finding.severity, finding.ranks, finding.locations[0].line) == ("error", (1,), 12)
    assert headline(report).startswith("Rank 1 raised ValueError: bad batch. Again at train.py:12.")


def test_a_rank_that_died_is_the_cause_if_no_other_says_why(tmp_path: Path) -> None:
    (finding,) = job(tmp_path, LOST_PEER, DIED).findings
    assert finding.message == "Rank 1 ended without a Python exception. Rank 0 ended after it."
    assert "dmesg" in finding.fix


def test_it_is_in_the_report_of_the_only_recorded_rank(tmp_path: Path) -> None:
    report = job(tmp_path, LOST_PEER, DIED, n_traces=1)
    assert [finding.rule for finding in report.findings] == ["COM012"]


def test_it_is_silent_in_a_job_that_ended_well(tmp_path: Path) -> None:
    assert job(tmp_path, None, None).findings == ()


def test_failures_that_follow_are_told_only_without_a_cause(tmp_path: Path) -> None:
    assert job(tmp_path, LOST_PEER, LOST_PEER).findings == ()


def test_it_is_skipped_in_a_recording_of_one_rank(
    analyzed: Callable[..., Report], device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "COM012"


@pytest.mark.parametrize(
    "what", ["raised OutOfMemoryError", "raised RuntimeError: can't allocate memory"]
)
def test_memory_that_runs_out_has_its_own_fix(tmp_path: Path, what: str) -> None:
    (finding,) = job(tmp_path, None, {**RAISED, "what": what}).findings
    assert "smaller batches" in finding.fix
