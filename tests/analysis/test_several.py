"""Many recordings, in this process or others, with the ranks of jobs joined."""

import json
import os
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fsspec
import numpy as np
import pytest

from profkit.analysis import several
from profkit.analysis.several import AnalysisRequest, Scale, analyze_all
from profkit.api import analyze, render
from profkit.cli.main import main
from profkit.errors import DamagedFileError, LoadError, MissingFileError, NotATraceError
from profkit.model.report import Report
from profkit.packed import Packed
from profkit.readers.recordings import Recording, find_recordings, may_be_ranks
from profkit.scale.worker import named, outcome_of
from profkit.testing import LiveBuilder, TraceBuilder
from tests.job_traces import write_rank, write_ranks


class Silent:
    """A listener that counts."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.done: list[tuple[int, int]] = []

    def reading(self, path: str) -> None:
        self.read.append(path)

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        """Do nothing."""

    def on_stage(self, stage: str, ns: int) -> None:
        """Do nothing."""

    def finished(self, n: int, of: int, stages_ns: object) -> None:  # noqa: ARG002
        self.done.append((n, of))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "job", 3)


def lone(path: Path) -> Path:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    return Path(b.write(path))


def test_processes_give_the_report_of_this_process(job: Path) -> None:
    (job / "rank9.pt.trace.json.gz").write_bytes(b"\x1f\x8b and nothing")
    serial, there = analyze(job), analyze(job, workers=2)
    assert render(serial, "json") == render(there, "json")
    assert [rank.rank for rank in serial.ranks] == [0, 1, 2]
    (lost,) = serial.unread
    assert lost.file == str(job / "rank9.pt.trace.json.gz")
    assert "rank9" in lost.why


def test_each_recording_is_read_once(job: Path) -> None:
    lone(job / "other.pt.trace.json")
    request, silent = AnalysisRequest(format="html", format_options={"base": str(job)}), Silent()
    results = analyze_all(find_recordings([str(job)]), request, Scale(), silent)
    assert sorted(silent.read) == sorted(str(path) for path in job.iterdir())
    assert [report.is_job for report in results.reports] == [False, True]
    of_rank, of_job = results.reports
    assert of_rank.product is not None
    assert of_rank.product.startswith(b"<!DOCTYPE html>")
    assert of_job.product is None, "of several reports there is one"
    assert of_job.paths == tuple(str(job / f"rank{rank}.pt.trace.json.gz") for rank in range(3))


def test_ranks_of_no_job_are_shown_as_they_are(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (1, 2):
        (job / f"rank{rank}.pt.trace.json.gz").unlink()
    write_rank(2, job, begins_s=90)
    for arguments in ([], ["--workers", "1"]):
        assert main(["analyze", str(job), "--format", "json", *arguments]) == 0
        assert [line["source"]["rank"] for line in json.loads(capsys.readouterr().out)] == [0, 2]


def test_what_may_be_a_rank_is_known_from_the_start_of_its_file(tmp_path: Path) -> None:
    paths = [
        write_rank(0, tmp_path),
        write_rank(1, tmp_path),
        write_rank(2, tmp_path, world_size=9),
        lone(tmp_path / "lone.json"),
        tmp_path / "missing.json",
        Path(LiveBuilder().write(tmp_path / "run.memory.json.gz")),
    ]
    recordings = [Recording((str(path),)) for path in paths]
    assert may_be_ranks(recordings) == [True, True, False, False, True, False]
    assert may_be_ranks(recordings[:1]) == [False]


def test_what_comes_back_is_small(job: Path) -> None:
    item = several._Item(
        find_recordings([str(job)])[0], AnalysisRequest(), may_be_rank=True, root="", n_readers=None
    )
    result = several.analyze_item(item)
    assert result.rank is not None
    assert result.rank.report.summary.top_kernels == ()
    assert result.report.value.summary.top_kernels

    small = len(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
    calls = result.rank.calls.calls
    rng = np.random.default_rng(0)
    many: dict[str, Any] = {
        name: np.tile(column, 1000) if isinstance(column, np.ndarray) else column * 1000
        for name, column in vars(calls).items()
        if name != "groups"
    }
    for name, column in many.items():
        if name.endswith("_ns"):  # nanoseconds of a minute, none like another
            many[name] = column + rng.integers(0, 60_000_000_000, len(column))
    longer = Packed(replace(calls, **many))
    large = replace(result, rank=replace(result.rank, packed_calls=longer))
    n_more = 999 * len(calls)
    grown = len(pickle.dumps(large, pickle.HIGHEST_PROTOCOL)) - small
    assert small < 100_000
    assert 30 < grown / n_more < 100, "bytes per collective"


def test_files_of_one_process_are_one_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank(0, tmp_path)
    write_rank(1, tmp_path)
    LiveBuilder().write(tmp_path / "rank1.memory.json.gz")
    LiveBuilder().write(tmp_path / "other.memory.json.gz")
    recordings = find_recordings([str(tmp_path)])
    assert [tuple(Path(path).name for path in recording.paths) for recording in recordings] == [
        ("other.memory.json.gz",),
        ("rank0.pt.trace.json.gz",),
        ("rank1.pt.trace.json.gz", "rank1.memory.json.gz"),
    ]
    assert all(recording.is_member for recording in recordings)
    assert main(["analyze", str(tmp_path), "--format", "json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [report["source"]["kind"] for report in reports] == ["live", "ranks"]


def test_a_file_that_is_given_twice_is_two_recordings(tmp_path: Path) -> None:
    path = str(write_rank(0, tmp_path))
    assert len(find_recordings([path, path])) == 2


@pytest.mark.parametrize(
    "given",
    [["a.pt.trace.json.gz"], ["a.memory.json.gz"], ["a.pt.trace.json.gz", "a.memory.json.gz"],
     ["a.memory.json.gz", "a.pt.trace.json.gz"], ["a.*"], ["."]],
    ids=" ".join,
)  # fmt: skip
def test_a_file_is_read_with_the_others_of_its_recording_beside_it(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank(0, tmp_path).rename(tmp_path / "a.pt.trace.json.gz")
    LiveBuilder().write(tmp_path / "a.memory.json.gz")
    LiveBuilder().write(tmp_path / "ab.memory.json.gz")
    monkeypatch.chdir(tmp_path)
    (first, *_) = find_recordings(given)
    assert [Path(path).name for path in first.paths] == ["a.pt.trace.json.gz", "a.memory.json.gz"]
    assert len(find_recordings(given)) == (2 if given == ["."] else 1)


def test_globs_name_files_and_folders(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [str(job / f"rank{rank}.pt.trace.json.gz") for rank in range(3)]
    assert [recording.paths[0] for recording in find_recordings([f"{job}/*[01].pt*"])] == ranks[:2]
    assert [recording.paths[0] for recording in find_recordings([f"{job.parent}/jo?"])] == ranks
    monkeypatch.chdir(job.parent)
    assert [rank.rank for rank in analyze("**/rank*.gz").ranks] == [0, 1, 2]
    (job / "odd[1].json").write_text("{}")
    assert find_recordings([str(job / "odd[1].json")]) == [Recording((str(job / "odd[1].json"),))]
    with pytest.raises(MissingFileError, match="no recordings"):
        find_recordings([str(job / "*.nothing")])


def test_folders_and_globs_at_urls_are_jobs(job: Path) -> None:
    store = fsspec.filesystem("memory")
    for path in job.iterdir():
        store.pipe(f"/bucket/run/{path.name}", path.read_bytes())
    store.pipe("/bucket/run/notes.txt", b"nothing")
    try:
        for url in ("memory://bucket/run", "memory://bucket/run/", "memory://bucket/run/*.gz"):
            report = analyze(url, workers=2)
            assert [rank.rank for rank in report.ranks] == [0, 1, 2]
            assert report.ranks[0].file.endswith("bucket/run/rank0.pt.trace.json.gz")
        assert analyze("memory://bucket/run/rank0.pt.trace.json.gz").source.rank == 0
        with pytest.raises(MissingFileError):
            analyze("memory://bucket/nothing/*")
    finally:
        store.rm("/bucket", recursive=True)


def test_archives_are_jobs(job: Path) -> None:
    packed = job.parent / "job.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(job, "job")
    assert [rank.rank for rank in analyze(packed).ranks] == [0, 1, 2]


def test_files_that_cannot_be_read_do_not_stop_the_others(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = job / "rank2.pt.trace.json.gz"
    broken.write_bytes(b"\x1f\x8b and nothing")
    assert main(["analyze", str(job)]) == 3

    written = capsys.readouterr()
    text = " ".join(written.out.split())
    assert "1 of 3 ranks was not recorded (2); not read: rank2.pt.trace.json.gz cannot" in text
    assert written.err.startswith("profkit: not read: ")
    assert main(["analyze", str(job), "--fail-on", "note"]) == 1

    capsys.readouterr()
    (job / "rank1.pt.trace.json.gz").unlink()
    with pytest.raises(LoadError, match="rank2"):
        analyze(job)

    (job / "rank0.pt.trace.json.gz").unlink()
    assert main(["analyze", str(job)]) == 3
    assert "rank2" in capsys.readouterr().err


def test_paths_that_do_not_exist_or_are_not_recordings_are_errors(job: Path) -> None:
    ranks = sorted(job.iterdir())
    with pytest.raises(MissingFileError):
        analyze([*ranks, job / "no.json"])
    (job / "notes.json").write_text("{}")
    with pytest.raises(NotATraceError):
        analyze([*ranks, job / "notes.json"])
    assert analyze(job).ranks


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes have no signals here")
def test_a_file_that_ends_its_process_is_in_the_report(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "_FUNCTION", "tests.analysis.killing:analyze_item")
    report = analyze(job, workers=1)
    assert [rank.rank for rank in report.ranks] == [0, 2]
    assert report.missing_ranks == (1,)
    (lost,) = report.unread
    assert lost.file.endswith("rank1.pt.trace.json.gz")
    assert "SIGKILL" in lost.why


def test_processes_are_chosen_by_the_size_of_files(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent()
    recordings = find_recordings([str(job)])
    analyze_all(recordings, AnalysisRequest(), Scale(), silent)
    assert not silent.done, "small files are read here"
    monkeypatch.setattr(several, "_WORTH_BYTES", 1)
    started: list[tuple[str, int]] = []

    def here(function: str, items: list[Any], n: int) -> Iterator[tuple[int, Any]]:
        started.append((function, n))
        for index in reversed(range(len(items))):
            yield index, outcome_of(named(function), items[index])

    monkeypatch.setattr(several, "call_in_processes", here)
    monkeypatch.setattr(several, "processes_for", lambda needs, _most: len(needs) - 1)
    silent = Silent()
    results = analyze_all(recordings, AnalysisRequest(), Scale(), silent)
    assert [report.is_job for report in results.reports] == [True]
    assert started == [("profkit.analysis.several:analyze_item", 2)]
    assert silent.read == []
    assert silent.done == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_rules_and_limits_apply_in_other_processes(job: Path) -> None:
    def rules(report: Report) -> set[str]:
        return {finding.rule for finding in report.findings}

    quiet = MappingProxyType({"item-sync": MappingProxyType({"min_wait_share": 1.0})})
    chosen: dict[str, Any] = {"thresholds": quiet, "select": ["SYN001", "SYN003"]}
    assert analyze(job, workers=1, **chosen) == analyze(job, **chosen)
    assert rules(analyze(job, **chosen)) < rules(analyze(job))


def test_another_version_of_profkit_is_refused(job: Path) -> None:
    item = several._Item(
        find_recordings([str(job)])[0],
        AnalysisRequest(),
        may_be_rank=True,
        root="",
        n_readers=None,
        version="0.0.0",
    )
    with pytest.raises(Exception, match=r"but this program runs 0\.0\.0"):
        several.analyze_item(item)


def test_analyses_within_a_script_do_not_run_it_again(job: Path) -> None:
    from tests.processes import start

    script = job.parent / "script.py"
    script.write_text(
        "import profkit\nprint('once')\n"
        f"print(len(profkit.analyze({str(job)!r}, workers=1).ranks))\n"
    )
    ended = start(job.parent, str(script))
    assert (ended.code, ended.out) == (0, "once\n3\n")


def test_a_damaged_member_among_explicit_files_is_not_a_usage_error(job: Path) -> None:
    ranks = sorted(job.iterdir())
    ranks[1].write_bytes(b"\x1f\x8b")
    assert [rank.rank for rank in analyze(ranks).ranks] == [0, 2]
    with pytest.raises(DamagedFileError):
        analyze(ranks[1])
