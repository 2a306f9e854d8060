"""Perfetto among the peers of an analysis."""

from pathlib import Path

import pytest

from benchmarks import analyze
from benchmarks.perfetto import trace_processor
from profkit.testing import TraceBuilder


@pytest.mark.skipif(
    bool(trace_processor.missing()), reason=trace_processor.missing() or "nothing is missing"
)
def test_perfetto_is_measured_as_a_process(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("aten::add", 1000)
    measured = analyze.perfetto(b.write(tmp_path / "trace.json"))
    assert not measured.failed
    assert measured.cpu_seconds > 0
    assert measured.peak_bytes > 10_000_000


def test_perfetto_is_listed_as_failed_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "Node.js" in analyze.perfetto(tmp_path / "trace.json").failed
