"""``profkit diff`` compares recordings, and fails a build if there is a new finding."""

import json
import os
import re
from pathlib import Path

import pytest

from profkit.cli.main import main
from profkit.model.difference import SCHEMA
from profkit.testing import LiveBuilder, TraceBuilder
from tests.index.snapshots import write
from tests.testing.test_live_builder import leaking

LINE = ("/home/me/train.py", 30, "step")


def training(wait_ns: int) -> TraceBuilder:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            if wait_ns:
                b.load(wait_ns)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=900_000)
            b.advance(900_000)
    return b


@pytest.fixture
def traces(tmp_path: Path) -> tuple[str, str]:
    """Two traces: one whose steps wait for data, and its cure."""
    slow = training(5_000_000).write(tmp_path / "slow.pt.trace.json.gz")
    return str(slow), str(training(0).write(tmp_path / "fixed.pt.trace.json.gz"))


def test_leaks_in_the_memory_record_beside_a_trace_are_compared(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fixed = traces
    leaking().write(Path(slow).with_name("slow.memory.json.gz"))
    LiveBuilder().write(Path(fixed).with_name("fixed.memory.json.gz"))
    assert main(["diff", slow, fixed, "--format", "json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    gone = {change["name"] for change in changes if change["status"] == "fixed"}
    assert gone == {"DAT001 starved-by-loader", "MEM004 growing-container"}


def test_two_snapshots_are_compared_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write(tmp_path / "a.pickle", [([LINE], 4096)])
    after = write(tmp_path / "b.pickle", [([LINE], 4096), ([LINE], 5 << 30)])
    assert main(["diff", str(before), str(after)]) == 0
    captured = capsys.readouterr()
    (row,) = [line for line in captured.out.splitlines() if line.startswith("1 to 2 blocks")]
    assert " ".join(row.split()) == (
        "1 to 2 blocks on cuda:0 worse +5.00 GiB /home/me/train.py:30 in step"
    )
    assert captured.err == ""


def test_a_fix_shows_as_shorter_steps_and_a_fixed_finding(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *traces]) == 0
    out = capsys.readouterr().out
    assert "Step time is 910 µs instead of 5.91 ms: 5.00 ms (85%) less." in out
    assert "Findings: 1 fixed." in out
    assert "DAT001 starved-by-loader" in out


def test_fail_on_counts_new_findings_and_not_fixed_ones(
    traces: tuple[str, str],
) -> None:
    slow, fixed = traces
    assert main(["diff", fixed, slow, "--fail-on", "warning"]) == 1
    assert main(["diff", fixed, slow, "--fail-on", "error"]) == 0
    assert main(["diff", slow, fixed, "--fail-on", "note"]) == 0
    assert main(["diff", slow, slow, "--fail-on", "note"]) == 0
    assert main(["diff", fixed, slow, "--fail-on", "note", "--ignore", "DAT"]) == 0


def test_json_is_written_to_a_file_and_existing_files_are_not_overwritten(
    traces: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "diff.json"
    assert main(["diff", *traces, "--format", "json", "-o", str(target)]) == 0
    tree = json.loads(target.read_text())
    assert tree["schema"] == SCHEMA
    assert [change["status"] for change in tree["changes"] if change["kind"] == "finding"] == [
        "fixed"
    ]
    assert main(["diff", *traces, "-o", str(target)]) == 5
    assert "already exists" in capsys.readouterr().err


def test_a_trace_and_a_snapshot_are_refused_with_exit_code_2(
    traces: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = write(tmp_path / "a.pickle", [([LINE], 4096)])
    assert main(["diff", traces[0], str(snapshot)]) == 2
    assert "Compare two recordings of the same kind." in capsys.readouterr().err


def test_a_missing_file_is_refused_with_exit_code_3(
    traces: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", traces[0], "no/such/file"]) == 3
    assert "There is no file no/such/file" in capsys.readouterr().err


def test_the_newest_trace_of_a_folder_is_compared_and_named(
    traces: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(traces[0], (1_000_000, 1_000_000))
    assert main(["diff", traces[0], str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("profkit: newest recording: fixed, just now")
    assert f"after:  …{traces[1][-40:]}"[-40:] in captured.out
    # A long path is shortened.
    after = re.search(r"^ +after: +(\S+)$", captured.out, re.MULTILINE)
    assert after is not None
    assert Path(after[1]).name == Path(traces[1]).name
