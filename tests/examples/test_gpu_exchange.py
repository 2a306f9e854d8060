"""``examples/gpu/exposed_communication.py`` on a CPU, in two processes that exchange by gloo.

How long one process waits for the other is the machine's matter: so what the rule says is held
against the events themselves, reckoned here by other means.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from isal import igzip

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "gpu" / "exposed_communication.py"
FAULT = PROGRAM.read_text().split("# fault:")[0].count("\n") + 1
SMALL = ["--device", "cpu", "--warm-up", "1", "--steps", "10", "--scale", "0.02"]
LEAST_SHARE = 0.1
GRADIENTS = 18
MICROSECOND = 1000


@dataclass(frozen=True)
class Recorded:
    """A run: what the rule said, and the events that it was said of."""

    said: list[dict[str, Any]]
    events: list[dict[str, Any]]


def record(folder: Path, *variant: str) -> Recorded:
    report = folder / "report.json"
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "profkit",
            "run",
            "--dir",
            str(folder),
            "--json",
            str(report),
            str(PROGRAM),
            *SMALL,
            *variant,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr

    (trace,) = folder.rglob("*.pt.trace.json.gz")
    events = json.loads(igzip.decompress(trace.read_bytes()))["traceEvents"]
    said = [
        finding
        for finding in json.loads(report.read_text())["findings"]
        if finding["rule"] == "COM001"
    ]
    return Recorded(said, [event for event in events if event.get("ph") == "X"])


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def cured(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("cured"), "--cured")


def span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def measure_waits(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Of each step, its length and what of it was waited, in microseconds.

    From an exchange's end back to the last operator of the training thread that has no others
    within it, or to the exchange's start: and never twice.
    """
    steps = sorted(span(event) for event in events if event["name"].startswith("ProfilerStep#"))
    thread = next(event["tid"] for event in events if event["name"].startswith("ProfilerStep#"))
    exchanges = sorted(span(event) for event in events if event["name"].startswith("gloo:"))
    ops = sorted(
        (
            span(event)
            for event in events
            if event["cat"] == "cpu_op"
            and event["tid"] == thread
            and not event["name"].startswith(("c10d::", "record_param_comms"))
        ),
        key=lambda span: (span[0], -span[1]),
    )
    leaves = [
        span
        for span, after in zip(ops, [*ops[1:], (float("inf"), 0.0)], strict=True)
        if after[0] >= span[1]
    ]
    waits: list[tuple[float, float]] = []

    for start, end in exchanges:
        if not any(a < end <= b for a, b in leaves):
            earlier = [b for _, b in leaves if b < end] + [b for _, b in waits]
            waits.append((max([start, *earlier]), end))

    return [
        (end - start, sum(max(0.0, min(b, end) - max(a, start)) for a, b in waits))
        for start, end in steps
    ]


def test_the_fault_is_found_on_its_line(faulty: Recorded) -> None:
    (finding,) = faulty.said
    (location,) = finding["locations"]
    assert (Path(location["file"]).name, location["line"]) == (PROGRAM.name, FAULT)
    assert (finding["severity"], finding["n"]) == ("warning", 3 * GRADIENTS)
    assert finding["fix"].startswith("Wrap the model in `DistributedDataParallel`")


@pytest.mark.parametrize("variant", ["faulty", "cured"])
def test_it_speaks_of_as_much_as_was_waited_and_of_a_tenth_of_the_steps_at_least(
    variant: str, request: pytest.FixtureRequest
) -> None:
    run: Recorded = request.getfixturevalue(variant)
    steps = measure_waits(run.events)
    assert len(steps) == 3
    hits = [waited >= LEAST_SHARE * length for length, waited in steps]
    assert bool(run.said) == (sum(hits) >= 2 and any(hits[1:]))
    for finding in run.said:
        expected = sum(waited for _, waited in steps) * MICROSECOND
        assert finding["cost"]["ns"] == pytest.approx(expected, rel=1e-3)


def test_the_cure_sends_gradients_within_the_backward_pass(cured: Recorded) -> None:
    exchanges = [event for event in cured.events if event["name"] == "c10d::allreduce_"]
    backward = [event for event in cured.events if event["name"].startswith("autograd::engine::")]
    assert exchanges
    for begin, end in map(span, exchanges):
        assert any(a <= begin and end <= b for a, b in map(span, backward))
    # One process may be late all the same; then it is not told to do what it does.
    assert not any("Wrap the model" in finding["fix"] for finding in cured.said)
