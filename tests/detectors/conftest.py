"""Runs one rule over a built trace."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]


@pytest.fixture
def analyzed(tmp_path: Path) -> Analyzed:
    """The report of one rule over a trace; thresholds by keyword."""

    def run(b: TraceBuilder, rule: str, **thresholds: float) -> Report:
        path = b.write(tmp_path / "built.pt.trace.json")
        changed = {rule: thresholds} if thresholds else None
        return analyze(path, select=[rule], thresholds=changed, strict=True)

    return run


@pytest.fixture
def found(analyzed: Analyzed) -> Found:
    """The findings of one rule over a trace."""

    def run(b: TraceBuilder, rule: str, **thresholds: float) -> tuple[Finding, ...]:
        report = analyzed(b, rule, **thresholds)
        assert not report.unchecked
        return (*report.findings, *report.health)

    return run


@pytest.fixture
def device_alone() -> TraceBuilder:
    """A recording that holds device work and nothing of the host."""
    b = TraceBuilder()
    b.kernel("gemm", 10_000)
    return b


@pytest.fixture
def host_alone() -> TraceBuilder:
    """A recording of two steps on a CPU."""
    b = TraceBuilder(device_names=())
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", 10_000)
    return b
