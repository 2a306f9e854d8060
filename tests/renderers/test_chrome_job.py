"""The traces of all ranks of a job as one."""

import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

from profkit.api import analyze, render
from tests import job_traces
from tests.job_traces import KERNEL, LATE_NS, N_STEPS, REDUCE_NS
from tests.renderers.trace_viewer import check, events_of, ours, slices_by_thread


def test_collectives_end_together_although_clocks_differ(tmp_path: Path) -> None:
    report = job_traces.job(tmp_path, 3)
    events = events_of(render(report, "chrome"))
    for pid in {event["pid"] for event in ours(events)}:
        check([event for event in events if event.get("cat") != "profkit" or event["pid"] == pid])
    ends = defaultdict(set)
    for event in events:
        if event["name"] == KERNEL:
            ends[event["args"]["Seq"]].add(event["ts"] + event["dur"])
    assert sorted(ends) == [*range(N_STEPS)]
    assert all(len(end) == 1 for end in ends.values())
    assert min(event["ts"] for event in events if "ts" in event) == 0


def test_each_rank_has_its_processes_and_one_with_its_collectives(tmp_path: Path) -> None:
    report = job_traces.job(tmp_path)
    events = events_of(render(report, "chrome"))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(set(names)) == len(names)

    shown = {name for name in names.values() if name.endswith("collectives")}
    assert shown == {"rank 0 · one · collectives", "rank 1 · other · collectives"}
    lengths = defaultdict(list)
    for event in ours(events):
        if event["ph"] == "X":
            lengths[names[event["pid"]], event["name"]].append(event["dur"])
    late, moved = Decimal(LATE_NS) / 1000, Decimal(REDUCE_NS - LATE_NS) / 1000
    assert lengths == {
        ("rank 0 · one · collectives", "all-reduce · 0: waiting for the last rank"): [late] * 4,
        ("rank 0 · one · collectives", "all-reduce · 0: transfer"): [moved] * 4,
        ("rank 1 · other · collectives", "all-reduce · 0: transfer"): [moved] * 4,
        (
            "rank 1 · other · collectives",
            "all-reduce · 0: host is late: the others wait for this rank",
        ): [late] * 4,
    }


def test_slices_of_a_thread_nest(tmp_path: Path) -> None:
    slices_of = slices_by_thread(events_of(render(job_traces.job(tmp_path), "chrome")))
    for slices in slices_of.values():
        for i, (start, end) in enumerate(slices):
            for other_start, until in slices[i + 1 :]:
                assert end <= other_start or until <= end or until <= start


def test_calls_of_profkit_are_on_no_ranks_timeline(tmp_path: Path) -> None:
    folder = job_traces.write_job(tmp_path / "job")
    calls = ("profkit/capture/recording/profiler.py(9): start", "threading.py(1): start")
    for path in folder.iterdir():
        trace = json.loads(path.read_text())
        first = trace["traceEvents"][0]
        for name in calls:
            call = {"cat": "python_function", "name": name, "args": {}}
            trace["traceEvents"].append({**first, **call, "ts": -50.0, "dur": 20.0})
        path.write_text(json.dumps(trace))
    events = events_of(render(analyze(folder), "chrome"))
    names = [event["name"] for event in events]
    assert not set(calls) & set(names)
    assert names.count("profkit: own work") == 2
