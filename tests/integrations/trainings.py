"""What the tests of callbacks share: what a trace says of its steps, what an example shows."""

import gzip
import json
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from profkit.integrations.training import Training
from profkit.model.report import Report
from tests.docs.blocks import ROOT

LOADER = "enumerate(DataLoader)"
OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True)
class Step:
    """A recorded step: its number, its duration, and what was recorded within it."""

    number: int
    dur_us: float
    names: tuple[str, ...]

    def count(self, start: str) -> int:
        """How many events begin with some text."""
        return sum(name.startswith(start) for name in self.names)


def steps_of(path: str | None) -> list[Step]:
    """Return the complete steps of a trace, read from its JSON."""
    assert path is not None, "no trace was written"
    trace: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    spans = []
    for slice_event in events:
        _, mark, number = slice_event["name"].partition("ProfilerStep#")
        is_step = mark and slice_event["cat"] == "user_annotation"
        if is_step and slice_event["name"] != trace["profkit"]["open_step"]:
            begin, end = slice_event["ts"], slice_event["ts"] + slice_event["dur"]
            within = (event["name"] for event in events if begin <= event["ts"] < end)
            spans.append(Step(int(number), slice_event["dur"], tuple(within)))
    return sorted(spans, key=lambda step: step.number)


def mean_step_ms(steps: list[Step], report: Report) -> float:
    """Return the mean duration of the steps that a report is of, by the trace.

    Other tests may have disturbed the rest, which a report leaves out.
    """
    names = {step.name for step in report.summary.steps}
    kept = [step.dur_us for step in steps if f"ProfilerStep#{step.number}" in names]
    return sum(kept) / len(kept) / 1000


def run_example(example: str, arguments: list[str], patch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the rules that fire in a program of ``examples/trainers``."""
    reports: list[Report | None] = []

    class Recorded(Training):
        def end(self, *given: Any, **named: Any) -> None:  # noqa: ANN401  (those of Training)
            was_open = self._open is not None
            super().end(*given, **named)
            if was_open:
                reports.append(self.report)

    patch.setattr("profkit.integrations.training.Training", Recorded)
    patch.setattr(sys, "argv", [example, *arguments])
    runpy.run_path(str(ROOT / "examples" / "trainers" / f"{example}.py"), run_name="__main__")
    (report,) = reports
    assert report is not None
    return [finding.name for finding in report.findings]
