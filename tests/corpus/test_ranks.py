"""Real jobs of several ranks, with what their authors found."""

import json
from collections import Counter
from pathlib import Path

from isal import igzip

from profkit.api import analyze
from profkit.model.report import Report
from tests.corpus.recordings import CORPUS, needs_corpus

pytestmark = needs_corpus
RANKS = CORPUS / "ranks"


def report_of(folder: Path, pattern: str = "rank*.json.gz") -> Report:
    return analyze(sorted(folder.glob(pattern)))


def test_every_collective_of_a_whole_pipeline_is_matched() -> None:
    report = report_of(RANKS / "bytedance-ST")
    found = report.collectives
    assert found is not None
    assert found.matched_share == 1
    assert [each.rank for each in report.ranks] == list(range(8))
    assert report.missing_ranks == ()
    n = Counter({"pairs": 0, "groups": 0})
    for each in found.groups:
        n["pairs" if each.kind == "send" else "groups"] += each.n
    assert n == {"pairs": 1536, "groups": 320}
    # One host's clock: nothing is corrected where readings differ more than clocks.
    assert {each.offset_ns for each in report.ranks} == {0}


def test_a_straggler_of_a_job_of_which_some_ranks_were_logged() -> None:
    report = report_of(RANKS / "bytedance-AR")
    found = report.collectives
    assert found is not None
    assert len(report.missing_ranks) == 48
    scatters = [each for each in found.groups if each.kind == "reduce-scatter"]
    assert len(scatters) == 4
    for each in scatters:  # the first data-parallel rank of each stage is always last
        assert [last.rank for last in each.last] == [each.ranks[0]]
    # The all-reduces within tensor-parallel groups have one recorded rank each.
    unmatched = {each.reason: each.n for each in found.unmatched}
    assert unmatched["not-recorded"] == 128
    slowest = max(report.ranks, key=lambda each: each.compute_ns or 0)
    assert slowest.rank == 0


def test_a_rank_that_sleeps_before_each_step() -> None:
    report = report_of(RANKS / "gloo-a", "rank*.pt.trace.json.gz")
    found = report.collectives
    assert found is not None
    (group,) = found.groups
    assert (group.n, group.kind, found.matched_share) == (8, "all-reduce", 1)
    (last,) = group.last
    assert (last.rank, last.n, last.why) == (2, 8, "host")
    assert 40e6 < last.late_ns / last.n < 46e6


def test_two_ranks_of_many_match_only_what_ends_together() -> None:
    report = report_of(CORPUS / "traces", "rank[01]-of-128.json.gz")
    found = report.collectives
    assert found is not None
    assert found.n == 4
    assert found.matched_share == 8 / 20
    assert len(report.missing_ranks) == 126


def test_waiting_is_that_of_the_files() -> None:
    """Of the reduce-scatters of two ranks, from their text."""
    calls: dict[int, dict[int, tuple[int, int]]] = {}
    for rank in (0, 1):
        path = RANKS / "bytedance-ST" / f"rank{rank}.json.gz"
        events = json.loads(igzip.decompress(path.read_bytes()))["traceEvents"]
        own = [each for each in events if each.get("args", {}).get("Collective name")]
        for each in own:
            if each["args"]["Process Group Name"] == "dp0_grads-reduce-scatter":
                start = round(1000 * each["ts"])
                end = start + round(1000 * each["dur"])
                calls.setdefault(each["args"]["Seq"], {})[rank] = start, end
    waits, transfers = 0, 0
    for one in calls.values():
        latest = max(start for start, _ in one.values())
        waits += sum(min(latest, end) - start for start, end in one.values())
        transfers += max(end for _, end in one.values()) - latest
    report = report_of(RANKS / "bytedance-ST")
    assert report.collectives is not None
    named = (g for g in report.collectives.groups if g.group == "dp0_grads-reduce-scatter")
    (group,) = named
    assert (group.n, group.wait_ns, group.transfer_ns) == (len(calls), waits, transfers)
