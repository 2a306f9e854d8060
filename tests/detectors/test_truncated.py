"""odd-trace reports an incomplete trace file, and how much was read."""

from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.testing import TraceBuilder

RULE = "odd-trace"


def trace() -> bytes:
    b = TraceBuilder()
    for _ in range(50):
        b.compute("aten::mm", 1_000)
    return b.to_bytes()


def health(data: bytes, tmp_path: Path) -> tuple[Finding, ...]:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    return analyze(path, select=[RULE], strict=True).health


@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
def test_a_file_that_was_cut_off_is_reported_with_what_was_read(
    share: float, tmp_path: Path
) -> None:
    data = trace()[: int(share * len(trace()))]
    (finding,) = health(data, tmp_path)
    n_whole = data.count(b'"External id"') - (not data.rstrip(b" ,\n").endswith(b"}}"))
    assert abs(finding.evidence["n_events"] - n_whole) <= 1  # type: ignore[operator]
    assert finding.evidence["uncompressed_bytes"] == len(data)
    assert finding.severity == "warning"


def test_a_whole_file_is_not_reported(tmp_path: Path) -> None:
    assert health(trace(), tmp_path) == ()
