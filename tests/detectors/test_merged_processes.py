"""odd-trace reports a file that was joined from the traces of several ranks."""

import json
from collections.abc import Callable
from pathlib import Path

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "odd-trace"


def merged(tmp_path: Path, *prefixes: str) -> Report:
    """Return the trace of each rank, with its name before its processes, as SGLang joins them."""
    b = TraceBuilder()
    for _ in range(3):
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    document = b.to_dict()
    events = document["traceEvents"]
    document["traceEvents"] = [
        {**event, "pid": f"{prefix}{event['pid']}"} for prefix in prefixes for event in events
    ]
    path = tmp_path / "merged.trace.json"
    path.write_text(json.dumps(document))
    return analyze(path, select=[RULE], strict=True)


def test_operators_of_two_processes_are_reported(tmp_path: Path) -> None:
    (finding,) = merged(tmp_path, "[TP00] ", "[TP01] ").health
    assert (finding.rule, finding.severity, finding.n) == ("PRF006", "warning", 2)
    assert "`[TP00] " in finding.message
    assert "`[TP01] " in finding.message


def test_one_process_is_not_a_fault(
    found: Callable[..., tuple[Finding, ...]], tmp_path: Path
) -> None:
    assert merged(tmp_path, "[TP00] ").health == ()
    b = TraceBuilder()
    b.compute("aten::mm", 5_000)
    assert found(b, RULE) == ()
