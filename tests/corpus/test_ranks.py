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
    collectives = report.collectives
    assert collectives is not None
    assert collectives.matched_share == 1
    assert [rank.rank for rank in report.ranks] == list(range(8))
    assert report.missing_ranks == ()
    n = Counter({"pairs": 0, "groups": 0})
    for group in collectives.groups:
        n["pairs" if group.kind == "send" else "groups"] += group.n
    assert n == {"pairs": 1536, "groups": 320}
    # One host's clock: nothing is corrected where readings differ more than clocks.
    assert {rank.offset_ns for rank in report.ranks} == {0}


def test_a_straggler_of_a_job_of_which_some_ranks_were_logged() -> None:
    report = report_of(RANKS / "bytedance-AR")
    collectives = report.collectives
    assert collectives is not None
    assert len(report.missing_ranks) == 48
    scatters = [group for group in collectives.groups if group.kind == "reduce-scatter"]
    assert len(scatters) == 4
    for scatter in scatters:  # the first data-parallel rank of each stage is always last
        assert [last.rank for last in scatter.last] == [scatter.ranks[0]]
    # The all-reduces within tensor-parallel groups have one recorded rank each.
    n_unmatched = {group.reason: group.n for group in collectives.unmatched}
    assert n_unmatched["not-recorded"] == 128
    slowest = max(report.ranks, key=lambda rank: rank.compute_ns or 0)
    assert slowest.rank == 0


def test_a_rank_that_sleeps_before_each_step() -> None:
    report = report_of(RANKS / "gloo-a", "rank*.pt.trace.json.gz")
    collectives = report.collectives
    assert collectives is not None
    (group,) = collectives.groups
    assert (group.n, group.kind, collectives.matched_share) == (8, "all-reduce", 1)
    (last,) = group.last
    assert (last.rank, last.n, last.why) == (2, 8, "host")
    assert 40e6 < last.late_ns / last.n < 46e6


def test_two_ranks_of_many_match_only_what_ends_together() -> None:
    report = report_of(CORPUS / "traces", "rank[01]-of-128.json.gz")
    collectives = report.collectives
    assert collectives is not None
    assert collectives.n == 4
    assert collectives.matched_share == 8 / 20
    assert len(report.missing_ranks) == 126


def test_waiting_agrees_with_the_files() -> None:
    """Of the reduce-scatters of two ranks, from their text."""
    calls: dict[int, dict[int, tuple[int, int]]] = {}
    for rank in (0, 1):
        path = RANKS / "bytedance-ST" / f"rank{rank}.json.gz"
        events = json.loads(igzip.decompress(path.read_bytes()))["traceEvents"]
        own_events = [event for event in events if event.get("args", {}).get("Collective name")]
        for own_event in own_events:
            if own_event["args"]["Process Group Name"] == "dp0_grads-reduce-scatter":
                start = round(1000 * own_event["ts"])
                end = start + round(1000 * own_event["dur"])
                calls.setdefault(own_event["args"]["Seq"], {})[rank] = start, end
    waits, transfers = 0, 0
    for spans in calls.values():
        latest = max(start for start, _ in spans.values())
        waits += sum(min(latest, end) - start for start, end in spans.values())
        transfers += max(end for _, end in spans.values()) - latest
    report = report_of(RANKS / "bytedance-ST")
    assert report.collectives is not None
    named = (g for g in report.collectives.groups if g.group == "dp0_grads-reduce-scatter")

    (group,) = named
    assert (group.n, group.wait_ns, group.transfer_ns) == (len(calls), waits, transfers)
