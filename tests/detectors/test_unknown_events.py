"""odd-trace reports events that no figure has, such as those of another accelerator."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder

RULE = "odd-trace"
Entry = dict[str, Any]


def build_events(*, device: bool = True) -> list[Entry]:
    """Operators, and work of a device in categories and with arguments that are not known."""
    events: list[Entry] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in ((1, "Python"), (3, "NPU Hardware"))
    ]

    for number in range(5):
        ts = f"{1_699_529_623_106_000 + 100 * number}.061"
        events.append(
            {
                "ph": "X",
                "name": "aten::mm",
                "pid": 1,
                "tid": 1,
                "ts": ts,
                "dur": 30.0,
                "cat": "cpu_op",
                "args": {},
            }
        )
        if device:
            args = {"Core": "matrix", "Queue": 3}
            events.append(
                {
                    "ph": "X",
                    "name": "MatMulV2",
                    "pid": 3,
                    "tid": 3,
                    "ts": ts,
                    "dur": 60.5,
                    "args": args,
                }
            )

    return events


def report(tmp_path: Path, events: list[Entry]) -> Report:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    return analyze(path, select=[RULE], strict=True)


def test_work_of_an_accelerator_in_another_form_is_reported(tmp_path: Path) -> None:
    (finding,) = report(tmp_path, build_events()).health
    assert (finding.rule, finding.severity, finding.n) == ("PRF006", "warning", 5)
    assert finding.message == (
        "5 of 10 events (50%) are of kinds that profkit does not know, and are not counted, such "
        "as those of `NPU Hardware`."
    )


def test_unknown_device_work_is_not_taken_for_a_program_on_the_cpu(tmp_path: Path) -> None:
    assert "no device work" in headline(report(tmp_path, build_events()))
    assert " on the CPU" in headline(report(tmp_path, build_events(device=False)))


def test_operators_alone_are_not_a_fault(tmp_path: Path) -> None:
    assert report(tmp_path, build_events(device=False)).health == ()


def test_kinetos_other_events_and_single_marks_are_not_a_fault(
    found: Callable[..., tuple[Finding, ...]], tmp_path: Path
) -> None:
    assert found(TraceBuilder(stacks=True), RULE) == ()
    ranges = [
        {**event, "cat": "cuda_profiler_range"} for event in build_events() if "cat" not in event
    ]
    assert report(tmp_path, [*build_events(device=False), *ranges]).health == ()
    mark = {"ph": "X", "name": "mark", "pid": 9, "tid": 9, "ts": 1_699_529_623_106_001, "dur": 1}
    assert report(tmp_path, [*build_events(device=False) * 50, mark]).health == ()
