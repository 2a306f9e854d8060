"""odd-trace reports invalid events, which are skipped."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "odd-trace"


def report(tmp_path: Path, *more: Any) -> Report:  # noqa: ANN401  (whatever a file may hold)
    b = TraceBuilder()
    for _ in range(200):
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    document = b.to_dict()
    document["traceEvents"] += more
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    return analyze(path, select=[RULE], strict=True)


def kernel(dur: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "endless",
        "pid": 0,
        "tid": 7,
        "ts": 5.0,
        "dur": dur,
        "args": {"device": 0, "stream": 7},
    }


def test_a_kernel_of_years_is_reported_and_excluded_from_all_totals(tmp_path: Path) -> None:
    sane, odd = report(tmp_path), report(tmp_path, kernel(1.8e16))
    (finding,) = odd.health
    assert (
        "1 with invalid times, such as endless (its start or duration is not a valid number)"
        in finding.message
    )
    assert finding.evidence["events"] == [odd.source.n_events - 1]
    assert odd.summary.devices == sane.summary.devices
    assert odd.summary.window_ns == sane.summary.window_ns


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["x", None, 7], "3 that are no events"),
        ([{"ph": "B", "name": "x", "pid": 1, "tid": 1, "ts": 1}], "1 that begin without an end"),
        ([kernel(-4.0)], "its duration is negative"),
    ],
)
def test_each_kind_is_reported(more: list[Any], said: str, tmp_path: Path) -> None:
    (finding,) = report(tmp_path, *more).health
    assert said in finding.message
    assert finding.n == len(more)


def test_lost_times_of_a_device_have_a_fix_of_their_own(tmp_path: Path) -> None:
    lost = {**kernel(0.0), "ts": 0.0}
    (finding,) = report(tmp_path, lost, lost).health
    assert "such as endless (the profiler has lost its time)" in finding.message
    assert "before another `torch.profiler` stops" in finding.fix


def test_single_accidents_are_notes_and_many_a_warning(tmp_path: Path) -> None:
    assert report(tmp_path, *[kernel(-1.0)] * 9).health[0].severity == "warning"
    few = json.loads(json.dumps([{"ph": "s", "id": 1, "ts": 1, "pid": 1, "tid": 1}])) * 5000
    assert report(tmp_path, *few, kernel(-1.0)).health[0].severity == "note"


def test_a_sane_recording_is_not_reported(tmp_path: Path) -> None:
    assert report(tmp_path).health == ()
