"""When batches of loader workers are what the critical path waits for."""

from pathlib import Path

import pytest

from profkit import analyze
from profkit.testing import TraceBuilder

MS = 1_000_000


@pytest.mark.parametrize(
    ("wait_ms", "compute_ms", "share"),
    [
        (3, 30, 3 / 33),  # a finished batch that takes long to fetch, as the cores are shared
        (0.5, 3, 0.5 / 3.5),
        (10, 30, 39 / 40),  # late batches: their workers are busy while the program computes
    ],
)
def test_only_late_batches_show_the_pace_of_workers(
    tmp_path: Path, wait_ms: float, compute_ms: float, share: float
) -> None:
    b = TraceBuilder()
    for _ in range(20):
        with b.step():
            b.load(round(wait_ms * MS), workers=True)
            b.compute("aten::mm", round(compute_ms * MS))
    path = analyze(b.write(tmp_path / "t.json")).summary.critical_path
    assert path is not None
    waiting = sum(line.share for line in path.lines if line.kind == "data-wait")
    assert waiting == pytest.approx(share, abs=0.04)
