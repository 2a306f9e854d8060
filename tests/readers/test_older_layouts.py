"""Reports and memory records of layout 1 are read: by the loader, analyze, diff, view and export.

The files in ``layout_1`` were written by the last version with that layout: a report on
``traces/leak_losses_with_graph``, a memory record of that program, and a report on the record.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.cli.main import main
from profkit.errors import DamagedFileError
from profkit.model.live_memory import LiveMemory
from profkit.readers.older_layouts import upgrade_capture, upgrade_memory, upgrade_report
from profkit.readers.report import read_report

FOLDER = Path(__file__).parent / "layout_1"
TRACE_REPORT = FOLDER / "trace_report.json.gz"
MEMORY_REPORT = FOLDER / "memory_report.json.gz"
MEMORY_RECORD = FOLDER / "run.memory.json.gz"
(TRACE,) = (FOLDER.parents[2] / "traces" / "leak_losses_with_graph").glob("*.pt.trace.json.gz")


def tree_of(path: Path) -> Any:  # noqa: ANN401  (any JSON value)
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize("path", [TRACE_REPORT, MEMORY_REPORT])
def test_no_value_of_a_report_is_lost(path: Path) -> None:
    old = tree_of(path)
    assert old["schema"] == "profkit.report/1"
    report = read_report(path)
    assert report is not None
    upgraded = json.loads(profkit.render(report, "json"))
    assert upgraded["schema"] == "profkit.report/2"
    of_several_ranks = {"ranks", "missing_ranks", "collectives", "unread"}
    for tree in (upgraded, *upgraded["findings"], *upgraded["health"]):
        for key in of_several_ranks & tree.keys():
            assert not tree.pop(key)
    for finding in (*upgraded["findings"], *upgraded["health"]):
        assert finding.pop("id").startswith(finding["rule"])
        assert finding.pop("growth") is None
    assert upgrade_report(old) == upgraded


def test_no_value_of_a_memory_record_is_lost() -> None:
    old = tree_of(MEMORY_RECORD)
    assert old["schema"] == "profkit.memory/1"
    record = profkit.load(MEMORY_RECORD)
    assert isinstance(record, LiveMemory)
    assert record.n_steps == old["n_steps"]
    assert len(record.samples) == len(old["looks"])
    assert record.monitored_ns == old["watched_ns"]
    assert [leak.per_step_bytes for leak in record.leaks] == [
        growth["per_step_bytes"] for growth in old["growths"]
    ]
    assert record.leaks[0].stack_basis == old["growths"][0]["stack_is"]


def test_a_memory_record_gives_the_same_findings_as_before() -> None:
    report = profkit.analyze(MEMORY_RECORD)
    old = tree_of(MEMORY_REPORT)
    assert [each.rule for each in report.findings] == [each["rule"] for each in old["findings"]]
    assert report.findings[0].cost.per_step_bytes == old["findings"][0]["cost"]["per_step_bytes"]


def test_a_report_is_compared_with_a_trace_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(TRACE_REPORT), str(TRACE), "--format", "json"]) == 0
    difference = json.loads(capsys.readouterr().out)
    assert [each for each in difference["changes"] if each["kind"] != "finding"] == []
    figures = {each["name"]: (each["before"], each["after"]) for each in difference["figures"]}
    before, after = figures["step_ns"]
    assert before == after


def test_a_report_is_viewed_and_exported(tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "report.md"
    assert main(["view", str(TRACE_REPORT), "--no-open", "-o", str(page)]) == 0
    assert b"leak_losses_with_graph.py" in page.read_bytes()
    assert main(["export", str(MEMORY_REPORT), "--to", "md", "-o", str(text)]) == 0
    assert "leak_losses_with_graph.py" in text.read_text(encoding="utf-8")


def test_evidence_keeps_the_keys_of_its_rule() -> None:
    finding = {
        "evidence": {"how": 1, "looks": 2},
        "waits": [{"what": "x", "evidence": {"what": 3}}],
    }
    report = {"schema": "profkit.report/1", "findings": [finding]}
    (upgraded,) = upgrade_report(report)["findings"]
    assert upgraded["evidence"] == {"how": 1, "looks": 2}
    assert upgraded["sync_sites"] == [{"operation": "x", "evidence": {"what": 3}}]


@pytest.mark.parametrize("upgrade", [upgrade_report, upgrade_memory])
@pytest.mark.parametrize("tree", [3, None, [], {}, {"schema": "profkit.report/2", "how": 1}])
def test_other_values_are_not_changed(upgrade: Any, tree: object) -> None:  # noqa: ANN401
    before = json.dumps(tree)
    assert json.dumps(upgrade(tree)) == before


def test_the_capture_s_cost_is_renamed() -> None:
    info = {"name": "x", "cost": {"stretch_share": 0.1, "stretch_basis": "steps", "start_ns": 1}}
    assert upgrade_capture(info)["cost"] == {
        "overhead_ratio": 0.1, "overhead_basis": "steps", "start_ns": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "read"), [(TRACE_REPORT, read_report), (MEMORY_RECORD, profkit.load)]
)
def test_a_truncated_file_of_layout_1_is_damaged(
    path: Path, read: Callable[[Path], object], tmp_path: Path
) -> None:
    text = gzip.decompress(path.read_bytes())
    truncated = tmp_path / "truncated.json"
    truncated.write_bytes(text[: len(text) // 2])
    with pytest.raises(DamagedFileError):
        read(truncated)
