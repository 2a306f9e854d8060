"""A rule of another package needs one module and one entry point, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
(TRACE,) = (ROOT / "traces" / "starved_loader").glob("*.pt.trace.json.gz")
RULE = '''"""XYZ001 long-linears: linear layers take long.

What it finds:
    Calls of ``aten::linear`` that take long on the host.
"""

from collections.abc import Iterator

import numpy as np

from profkit.rule import Context, Finding, RuleInfo, dataclass

INFO = RuleInfo(
    id="XYZ001", name="long-linears", title="Linear layers take long", severity="warning",
    needs=(), since="1.0",
)


@dataclass(frozen=True)
class Thresholds:
    min_call_ns: int = 1


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    events = ctx.events
    rows = [
        row for row in range(len(events))
        if events.name_of(row) == "aten::linear" and events.dur_ns[row] >= thresholds.min_call_ns
    ]
    if rows:
        yield INFO.finding(
            severity="warning", confidence="high", message="Linear layers take long.",
            fix="Use smaller layers.", locations=(), n=len(rows),
            cost=ctx.cost(int(events.dur_ns[np.array(rows)].sum()), basis="measured"),
        )
'''
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run profkit in a folder, with the plugin installed beside it."""
    installed = tmp_path / "site"
    metadata = installed / "xyz_rules-1.0.dist-info"
    metadata.mkdir(parents=True)
    (installed / "xyz_long_linears.py").write_text(RULE, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: xyz-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[profkit.detectors]\nlong-linears = xyz_long_linears\n"
    )

    def _run(*arguments: str) -> str:
        finished = subprocess.run(
            [sys.executable, "-m", "profkit", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return _run


def findings(report: str) -> list[str]:
    return [finding["name"] for finding in json.loads(report)["findings"]]


def test_the_finding_of_a_plugin_is_in_the_report_and_can_be_selected(run: Run) -> None:
    analyze = ("analyze", str(TRACE), "--format", "json")
    assert sorted(findings(run(*analyze))) == ["long-linears", "starved-by-loader"]
    assert findings(run(*analyze, "--select", "XYZ")) == ["long-linears"]
    assert findings(run(*analyze, "--ignore", "long-linears")) == ["starved-by-loader"]
    assert "Linear layers take long." in run("analyze", str(TRACE))


def test_the_thresholds_of_a_plugin_are_set_in_pyproject(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.profkit]\nselect = ["long-linears"]\n'
        "[tool.profkit.thresholds.long-linears]\nmin_call_ns = 1000000000000\n"
    )
    assert findings(run("analyze", str(TRACE), "--format", "json")) == []


def test_it_is_listed_and_has_a_page(run: Run) -> None:
    assert "long-linears" in run("rules")
    page = run("rules", "XYZ001")
    assert "XYZ001 long-linears: Linear layers take long" in page
    assert "Calls of `aten::linear` that take long on the host." in page
