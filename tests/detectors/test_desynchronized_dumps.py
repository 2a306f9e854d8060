"""COM003 desynchronized-collectives by dumps of torch's FlightRecorder."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze
from profkit.cli.main import main
from tests.flight import build_entry, dump, own, waiting, written

DONE = [build_entry(1, line=10), build_entry(2, line=11)]
HANGS = dump([*DONE, waiting(3, line=12)])


def report(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, Any]:
    code = main(["analyze", *map(str, paths), "--format", "json", "--fail-on", "error"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == int(any(finding["severity"] == "error" for finding in document["findings"]))
    return document


def test_a_folder_of_dumps_names_collective_ranks_and_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "job", HANGS, dump(DONE), HANGS)
    document = report(capsys, folder)

    (finding,) = document["findings"]
    assert finding["rule"] == "COM003"
    assert finding["message"] == (
        "Ranks 0, 2 wait in all-reduce 3 at train.py:12 of the group `default_pg` (ranks 0 to 2), "
        "which rank 1 has not called. Rank 1 called all-reduce 2 at train.py:11 last."
    )
    assert [place["line"] for place in finding["locations"]] == [12, 11]
    assert finding["ranks"] == [0, 1, 2]
    assert finding["evidence"]["started"] == [0, 2]
    assert finding["evidence"]["absent"] == [1]
    assert document["source"]["kind"] == "flight-recorder"
    assert document["source"]["n_events"] == 8
    assert analyze(folder).findings[0].message == finding["message"]


def test_files_are_one_job_and_ranks_without_a_dump_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "job", HANGS, dump(DONE), name="nccl_trace_rank_{}")
    document = report(capsys, *sorted(folder.iterdir()))
    assert document["missing_ranks"] == [2]
    assert document["findings"][0]["evidence"]["absent"] == [1]


def test_a_single_dump_tells_what_its_rank_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "job", HANGS)
    (finding,) = report(capsys, folder / "fr_rank0.json")["findings"]
    assert finding["message"] == (
        "Rank 0 waits in all-reduce 3 at train.py:12 of the group `default_pg` (rank 0). The other "
        "ranks of the group have no dump."
    )
    assert (finding["severity"], finding["confidence"]) == ("warning", "medium")


def test_different_sizes_are_told_with_their_lines(tmp_path: Path) -> None:
    other_dump = dump([*DONE, waiting(3, "broadcast", n=24, line=20)])
    (finding,) = analyze(written(tmp_path / "job", HANGS, HANGS, other_dump)).findings
    assert finding.message == (
        "Ranks of the group `default_pg` (ranks 0 to 2) disagree on collective 3: ranks 0, 1: "
        "all-reduce of 1,000 Float at train.py:12; rank 2: broadcast of 24 Float at train.py:20."
    )
    assert (finding.severity, finding.confidence) == ("error", "high")


def test_a_timeout_on_which_ranks_agree_says_how_far_each_was(tmp_path: Path) -> None:
    out, late = (
        dump([*DONE, build_entry(3, state=state, retired=True)])
        for state in ("started", "scheduled")
    )
    (finding,) = analyze(written(tmp_path / "job", out, late, out)).findings
    assert finding.message.endswith(
        "until it timed out, although all have called it alike: started on ranks 0, 2, scheduled "
        "on rank 1."
    )


def test_how_the_absent_rank_ended_is_said(tmp_path: Path) -> None:
    hangs = own(HANGS, 0, 2, stopped_by="RuntimeError")
    ended = own(dump(DONE), 1, 2, stopped_by="ValueError")
    (finding,) = analyze(written(tmp_path / "job", hangs, ended)).findings
    assert finding.message == (
        "Rank 0 waits for 97.0 s in all-reduce 3 at train.py:12 of the group `default_pg` "
        "(ranks 0, 1), which rank 1 has not called. Rank 1 called all-reduce 2 at train.py:11 "
        "last, and ended with ValueError."
    )
    assert finding.confidence == "high"


def test_one_cause_in_several_groups_is_one_finding(tmp_path: Path) -> None:
    tp: dict[str, Any] = {"process_group": ["5", "tp"]}
    hangs = dump([*DONE, waiting(3, line=12), waiting(4, line=13, **tp)])
    data = [hangs, dump([*DONE, build_entry(3, **tp)]), hangs]
    (finding,) = analyze(written(tmp_path / "job", *data)).findings
    assert finding.n == 2
    assert finding.evidence["other_groups"] == ["5"]


def test_it_is_silent_on_dumps_of_a_job_that_goes_on(tmp_path: Path) -> None:
    analysis = analyze(written(tmp_path / "job", *[dump(DONE)] * 3))
    assert (analysis.findings, analysis.ranks, analysis.missing_ranks) == ((), (), ())
    ahead = own(dump([*DONE, waiting(3)]), 0, 2, is_end=False)
    beside = written(tmp_path / "beside", ahead, own(dump(DONE), 1, 2, is_end=False))
    assert analyze(beside).findings == ()


@pytest.mark.parametrize("format_", ["text", "html", "md", "sarif", "csv"])
def test_every_format_shows_dumps(tmp_path: Path, format_: str) -> None:
    folder = written(tmp_path / "job", HANGS, dump(DONE), HANGS)
    out = tmp_path / "out"
    assert main(["analyze", str(folder), "--format", format_, "-o", str(out)]) == 0
    text = " ".join(out.read_text().split())
    assert "COM003" in text
    if format_ == "text":
        assert "These are dumps of torch's FlightRecorder, with 8 calls of collectives." in text


def test_dumps_of_other_jobs_are_reports_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "job", HANGS, dump(DONE), HANGS)
    written(tmp_path / "job", *[dump(DONE, "[0, 1]")] * 2, name="other_fr_rank{}.json")
    main(["analyze", str(tmp_path / "job"), "--format", "json"])
    documents = json.loads(capsys.readouterr().out)
    assert sorted(document["source"]["world_size"] for document in documents) == [2, 3]
