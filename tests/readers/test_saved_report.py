"""Reports that were saved as JSON are read back unchanged."""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import profkit
from profkit.analysis.options import AnalysisOptions
from profkit.api import analyze, compare, render, study
from profkit.errors import DamagedFileError
from profkit.model.report import Report
from profkit.readers.report import read_report
from profkit.testing import LiveBuilder, TraceBuilder
from tests.renderers import reports


def saved(folder: Path, report: Report) -> Path:
    path = folder / "report.json"
    path.write_bytes(profkit.render(report, "json"))
    return path


@pytest.mark.parametrize(
    "report", [reports.build_gpu_report(), reports.build_cpu_report(), reports.unchecked_report()]
)
def test_a_report_is_read_back_unchanged(tmp_path: Path, report: Report) -> None:
    saved_report = read_report(saved(tmp_path, report))
    bare = tuple(replace(finding, spans=()) for finding in report.findings)
    assert saved_report is not None
    assert profkit.render(saved_report, "json") == profkit.render(
        replace(report, findings=bare), "json"
    )


def test_a_saved_report_without_a_critical_path_shows_none(tmp_path: Path) -> None:
    path = saved(tmp_path, reports.build_gpu_report())
    tree = json.loads(path.read_bytes())
    tree["summary"]["critical_path"] = None
    path.write_text(json.dumps(tree))
    saved_report = read_report(path)
    assert saved_report is not None
    assert saved_report.summary.critical_path is None
    for name in ("text", "md", "html", "fragment", "csv"):
        assert b"Critical path" not in profkit.render(saved_report, name)


def test_a_compressed_report_without_indentation_is_the_same(tmp_path: Path) -> None:
    text = profkit.render(reports.build_gpu_report(), "json", indent=0)
    path = tmp_path / "report.json.gz"
    path.write_bytes(gzip.compress(text))
    assert read_report(path) == read_report(saved(tmp_path, reports.build_gpu_report()))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"traceEvents": []}',
        b'{"profkit": {"version": "1"}, "traceEvents": []}',
        b"\x80\x04]q\x00.",
    ],
)
def test_other_files_are_not_reports(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(text)
    assert read_report(path) is None


def test_a_truncated_report_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, reports.build_gpu_report())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DamagedFileError, match="is incomplete"):
        read_report(path)


def test_a_report_of_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, reports.build_gpu_report())
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "schema": "profkit.report/99"}))
    with pytest.raises(DamagedFileError, match=r"profkit\.report/99"):
        read_report(path)


def test_a_memory_record_of_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.memory.json"
    LiveBuilder().write(path)
    path.write_bytes(path.read_bytes().replace(b"profkit.memory/2", b"profkit.memory/99"))
    with pytest.raises(DamagedFileError, match=r"profkit\.memory/99"):
        profkit.load(path)


@pytest.mark.parametrize("kind", ["report", "memory"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b"train", b"tr\xe2in"),
        lambda text: re.sub(rb":[1-9]\d*", b":" + b"7" * 30, text),
        lambda text: re.sub(rb":[1-9]\d*", b":" + b"7" * 5_000, text),
        lambda text: text.replace(b"[", b"[" * 10_000),
    ],
    ids=["not UTF-8", "beyond 64 bits", "thousands of digits", "nested"],
)
def test_damaged_files_of_profkit_are_load_errors(
    kind: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "saved.json"
    if kind == "memory":
        LiveBuilder().write(path)
    else:
        b = TraceBuilder(stacks=True)
        with b.step(), b.frame("train.py", 3, "step"):
            b.compute("aten::mm", 5_000)
        (tmp_path / "t.json").write_bytes(b.to_bytes())
        path.write_bytes(render(analyze(tmp_path / "t.json"), "json", indent=0))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedFileError, match=r"saved\.json is"):
        compare(path, path)


def test_memory_events_without_any_other_event_are_drawn(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    with b.op("aten::empty"):
        b.alloc(64)
    document = b.to_dict()
    only = [event for event in document["traceEvents"] if event["ph"] != "X"]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**document, "traceEvents": only}))
    studied = study(path, AnalysisOptions(strict=True))
    assert render(studied.report, "html", recording=studied.recording)


@pytest.mark.parametrize(
    "metadata",
    [
        {"distributedInfo": {"rank": 10**30, "world_size": -(10**300)}},
        {"deviceProperties": [{"id": 0, "totalGlobalMem": 10**30}, {"id": 10**30}]},
        {"baseTimeNanoseconds": 10**300},
    ],
    ids=lambda entry: next(iter(entry)),
)
def test_metadata_beyond_64_bits_is_not_in_a_report(
    metadata: dict[str, object], tmp_path: Path
) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**b.to_dict(), **metadata}))
    report = analyze(path, strict=True)
    again = read_report(saved(tmp_path, report))
    assert again is not None
    assert render(again, "json") == render(report, "json")
    assert (report.source.rank, report.source.world_size) in {(None, None), (0, 1)}
