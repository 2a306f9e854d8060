"""Runs one rule over a built recording."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.live_memory import Chain, Leak
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.testing import LiveBuilder, TraceBuilder
from tests.detectors.jobs import JobBuilder

Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]


@pytest.fixture
def analyzed(tmp_path: Path) -> Analyzed:
    """Return the report of one rule over what was built; thresholds by keyword."""

    def run(b: TraceBuilder | LiveBuilder, rule: str, **thresholds: float) -> Report:
        path = b.write(tmp_path / "built.json")
        changed = {rule: thresholds} if thresholds else None
        return analyze(path, select=[rule], thresholds=changed, strict=True)

    return run


@pytest.fixture
def found(analyzed: Analyzed) -> Found:
    """Return the findings of one rule over what was built."""

    def run(b: TraceBuilder | LiveBuilder, rule: str, **thresholds: float) -> tuple[Finding, ...]:
        report = analyzed(b, rule, **thresholds)
        assert not report.unchecked
        return (*report.findings, *report.health)

    return run


@pytest.fixture
def found_in_job(tmp_path: Path) -> Found:
    """Return the findings of one rule over the ranks of a built job; thresholds by keyword."""

    def run(job: JobBuilder, rule: str, **thresholds: float) -> tuple[Finding, ...]:
        changed = {rule: thresholds} if thresholds else None
        folder = job.write(tmp_path / "job")
        report = analyze(folder, select=[rule], thresholds=changed, strict=True)
        assert not report.unchecked
        return report.findings

    return run


@pytest.fixture
def device_alone() -> TraceBuilder:
    """Build a recording that holds device work and nothing of the host."""
    b = TraceBuilder()
    b.kernel("gemm", 10_000)
    return b


@pytest.fixture
def host_alone() -> TraceBuilder:
    """Build a recording of two steps on a CPU."""
    b = TraceBuilder(device_names=())
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", 10_000)
    return b


@pytest.fixture
def watched() -> Watched:
    """Return a program of 200 steps in which one thing grows; by keyword, how it differs."""

    def run(*, n_evaluated_steps: int = 200, **changes: object) -> LiveBuilder:
        plain: dict[str, object] = {
            "kind": "tensors",
            "device": "cpu",
            "per_step_bytes": 65536,
            "bytes": 200 * 65536,
            "n": 200,
            "first_step": 1,
            "last_step": 200,
            "stack": (Frame("/home/me/train.py", 31, "main"), Frame("/home/me/train.py", 40, "go")),
            "stack_basis": "seen",
            "chains": (Chain("module-global", ("__main__.kept", "[199]"), "list", 200, "kept"),),
        }
        grown = Leak(**(plain | changes))  # type: ignore[arg-type]
        return LiveBuilder(n_evaluated_steps=n_evaluated_steps).add(grown)

    return run
