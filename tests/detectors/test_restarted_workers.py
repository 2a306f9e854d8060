"""restarted-workers finds loaders that start their workers anew, by the time of the whole run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.live_memory import WorkerRestarts
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.present.diagnosis import headline_sentences
from profkit.testing import LiveBuilder, TraceBuilder

RULE = "restarted-workers"
MS = 1_000_000
LOOP = Frame("/work/train.py", 30, "main")
RUN_NS = 399 * 20 * MS
"""The time of the steps after the first sample."""


def run_with(n: int, share: float) -> LiveBuilder:
    restarts = WorkerRestarts(LOOP, n, round(share * RUN_NS))
    return LiveBuilder(n_steps=400, n_samples=100, worker_restarts=restarts)


def test_line_count_and_share_are_named(found: Callable[..., tuple[Finding, ...]]) -> None:
    (finding,) = found(run_with(19, 0.5), RULE)
    assert finding.message == (
        "The loop at train.py:30 has started the loader's workers anew 19 times, and waited 210 ms "
        "each time until they had started and ended: 50% of the run."
    )
    assert finding.cost.per_step_ns == 10 * MS
    assert finding.locations == (LOOP.location,)


@pytest.mark.parametrize(("share", "severity"), [(0.04, "note"), (0.11, "warning")])
def test_a_small_share_is_a_note(
    found: Callable[..., tuple[Finding, ...]], share: float, severity: str
) -> None:
    (finding,) = found(run_with(19, share), RULE)
    assert finding.severity == severity


def test_two_restarts_say_little_of_a_run(found: Callable[..., tuple[Finding, ...]]) -> None:
    assert found(run_with(2, 0.5), RULE) == ()


def test_workers_that_start_fast_beside_long_epochs_are_silent(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    assert found(run_with(19, 0.02), RULE) == ()


def test_a_loader_that_keeps_its_workers_is_silent(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    assert found(LiveBuilder(n_steps=400, n_samples=100), RULE) == ()


def test_without_monitored_steps_it_is_skipped(analyzed: Callable[..., Report]) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "DAT008"


@pytest.mark.parametrize(
    ("step_ms", "share", "first"),
    [
        (20, 0.6, "Starting the loader's workers anew takes 60% of the run at train.py:30."),
        (5, 0.45, "Starting the loader's workers anew takes 45% of the run at train.py:30."),
        (12, 0.2, "Operators take 100% of each 12.0 ms step on the CPU"),
        (20, None, "Operators take 100% of each 20.0 ms step on the CPU"),
    ],
)
def test_the_first_sentence_names_what_takes_more_of_the_run(
    tmp_path: Path, step_ms: int, share: float | None, first: str
) -> None:
    b = TraceBuilder(
        device_names=(), capture=CaptureInfo(version="0", name="train", steps="optimizer")
    )
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", step_ms * MS)
    live = LiveBuilder(n_steps=400, n_samples=100) if share is None else run_with(19, share)
    live.write(tmp_path / "run.memory.json.gz")

    report = analyze(b.write(tmp_path / "run.pt.trace.json.gz"), select=[RULE], strict=True)
    sentences = headline_sentences(report)
    assert sentences[0].startswith(first)
    advises = "Pass `persistent_workers=True` to the `DataLoader`, and create it once." in sentences
    assert advises == first.startswith("Starting")
