"""Commands without a path take the newest recording, and say which one it is."""

import json
import os
import re
from pathlib import Path

import pytest

from profkit.testing import TraceBuilder
from tests.processes import Ended, start

US = 1_000
FIRST_NS = 1_700_000_000_000_000_000


def write(folder: Path, after_s: int, *, waits_us: int = 0, rank: int | None = None) -> Path:
    """Write a recording with the name that profkit gives; it may wait for its loader."""
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            if waits_us:
                b.load(waits_us * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=900 * US)
            b.item()
    folder.mkdir(parents=True, exist_ok=True)
    worker = f"host_{after_s}" + (f"_rank{rank}" if rank is not None else "")
    return b.write(folder / f"{worker}.{FIRST_NS + after_s * 1_000_000_000}.pt.trace.json.gz")


def profkit(folder: Path, *arguments: str, **environment: str) -> Ended:
    return start(folder, "-m", "profkit", *arguments, **environment)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with three runs of one program, and an earlier one of another."""
    folder = tmp_path / "my project"
    write(folder / "traces" / "eval", 0)
    for after_s, waits_us in ((10, 9_000), (20, 5_000), (30, 1_000)):
        write(folder / "traces" / "train", after_s, waits_us=waits_us)
    return folder


NEWEST = "traces/train/host_30.1700000030000000000.pt.trace.json.gz"
BEFORE = "traces/train/host_20.1700000020000000000.pt.trace.json.gz"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["analyze"], NEWEST),
        (["view", "--no-open", "-o", "page.html"], "page.html"),
        (["explain", "1"], "DAT001"),
        (["what-if", "--no-data-wait"], "data"),
        (["export", "--to", "md"], "# profkit report"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_without_a_path_takes_the_newest_and_says_so(
    project: Path, command: list[str], shown: str
) -> None:
    ended = profkit(project, *command)
    assert ended.code == 0, ended.err
    assert re.fullmatch(r"profkit: newest recording: train, .+ ago\n", ended.err)
    assert shown in ended.out


def test_an_export_says_what_it_wrote(project: Path) -> None:
    ended = profkit(project, "export", "--to", "chrome", "-o", "out/")
    *_, last = ended.err.splitlines()
    assert re.fullmatch(r"profkit: wrote out/host_30\S+", last)


def test_without_paths_the_two_newest_of_one_program_are_compared(project: Path) -> None:
    write(project / "traces" / "eval", 25)
    ended = profkit(project, "diff", "--format", "json")
    assert ended.code == 0
    before, after = ended.err.splitlines()
    assert before.startswith("profkit: before: train, ")
    assert after.startswith("profkit: after: train, ")
    tree = json.loads(ended.out)
    assert (tree["before"]["path"], tree["after"]["path"]) == (BEFORE, NEWEST)


def test_the_only_recording_of_a_program_has_nothing_to_be_compared_with(project: Path) -> None:
    write(project / "traces" / "big model", 40)
    ended = profkit(project, "diff")
    assert ended.code == 3
    assert "traces has one recording of big model only" in ended.err
    assert "profkit list" in ended.err


def test_json_is_as_with_a_path(project: Path) -> None:
    without = profkit(project, "analyze", "--format", "json")
    with_path = profkit(project, "analyze", NEWEST, "--format", "json")
    assert json.loads(without.out) == json.loads(with_path.out)
    assert with_path.err == ""


def test_the_newest_recording_of_a_folder_with_a_history_is_explained(project: Path) -> None:
    for command in (["explain", "1"], ["what-if", "--no-data-wait"]):
        ended = profkit(project, *command, "traces/train")
        assert ended.code == 0, ended.err
        assert NEWEST in ended.out
        assert ended.err.startswith("profkit: newest recording: train, ")
    assert f"after:  {NEWEST}" in profkit(project, "diff", "traces/train").out


def test_all_recordings_of_a_folder_that_is_given_are_analyzed(project: Path) -> None:
    ended = profkit(project, "analyze", "traces/train", "--format", "json")
    assert len(json.loads(ended.out)) == 3
    assert ended.err == ""


def test_the_folder_comes_from_the_environment(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "other traces" / "job", 0, waits_us=9_000)
    ended = profkit(project, "explain", "1", PROFKIT_DIR=str(tmp_path / "other traces"))
    assert "other traces/job/host_0." in ended.out


@pytest.mark.parametrize("command", ["analyze", "view", "what-if", "diff", "list", "explain 1"])
def test_without_recordings_it_says_what_to_do(tmp_path: Path, command: str) -> None:
    ended = profkit(tmp_path, *command.split())
    assert ended.code == 3
    assert "There is no folder traces." in ended.err
    assert "profkit run train.py" in ended.err


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    ended = profkit(tmp_path, "analyze", PROFKIT_DIR="runs")
    assert ended.code == 3
    assert "There are no recordings in runs." in ended.err
    assert "PROFKIT_DIR" in profkit(tmp_path, "view", PROFKIT_DIR="none").err


def test_a_path_in_place_of_a_finding_is_explained(project: Path) -> None:
    ended = profkit(project, "explain", NEWEST)
    assert ended.code == 2
    assert f"profkit explain 1 {NEWEST}" in ended.err


def test_one_file_cannot_be_compared(project: Path) -> None:
    assert profkit(project, "diff", NEWEST).code == 2
    missing = profkit(project, "diff", "traces/none.json")
    assert (missing.code, "There is no file traces/none.json" in missing.err) == (3, True)


def test_the_ranks_of_a_job_are_one_run(tmp_path: Path) -> None:
    for after_s in (0, 100):
        for rank in range(2):
            write(tmp_path / "traces" / "train", after_s + rank, rank=rank)
    listed = json.loads(profkit(tmp_path, "list", "--json").out)["runs"]
    assert [run["n_ranks"] for run in listed] == [2, 2]


def test_the_list_has_time_program_step_time_and_first_finding(project: Path) -> None:
    ended = profkit(project, "list", "--analyze")
    assert (ended.code, ended.err) == (0, "")
    head, *lines = ended.out.splitlines()
    assert head.split("  ")[0] == "recorded"
    rows, paths = lines[0::2], lines[1::2]
    assert [path.strip() for path in paths][:2] == [NEWEST, BEFORE]
    assert re.search(r"train +1\.\d+ ms  warning DAT001 starved-by-loader", rows[0])
    assert len(rows) == 4


def test_the_list_in_json_has_no_more_rows_than_asked_for(project: Path) -> None:
    tree = json.loads(profkit(project, "list", "--json", "--analyze", "--top", "2").out)
    assert (tree["schema"], tree["has_more"]) == ("profkit.runs/1", True)
    newest, before = tree["runs"]
    assert newest["paths"] == [NEWEST]
    assert newest["recorded_ns"] == FIRST_NS + 30_000_000_000
    assert newest["finding"]["rule"] == "DAT001"
    assert before["step_ns"] > newest["step_ns"]


def test_a_recording_that_cannot_be_read_is_in_the_list_with_its_reason(project: Path) -> None:
    cut = project / "traces" / "train" / f"host_9.{FIRST_NS + 90_000_000_000}.pt.trace.json"
    cut.write_bytes(b"\0" * 100)
    tree = json.loads(profkit(project, "list", "--json", "--analyze").out)
    assert "the file" in tree["runs"][0]["error"]
    assert tree["runs"][1]["error"] is None


def test_figures_of_an_earlier_analysis_are_listed_without_another(
    project: Path, tmp_path: Path
) -> None:
    cache = {"PROFKIT_CACHE": str(tmp_path / "cache")}
    assert profkit(project, "analyze", **cache).code == 0
    # The state of the file is its name, size and time: nothing reads it again.
    newest = project / NEWEST
    status = newest.stat()
    newest.write_bytes(b"\0" * status.st_size)
    os.utime(newest, ns=(status.st_atime_ns, status.st_mtime_ns))
    tree = json.loads(profkit(project, "list", "--json", "--top", "1", **cache).out)
    assert tree["runs"][0]["finding"], tree
    assert tree["runs"][0]["finding"]["rule"] == "DAT001"
    without = json.loads(profkit(project, "list", "--json", "--top", "1", PROFKIT_CACHE="0").out)
    assert without["runs"][0]["error"]


def test_the_shell_completes_commands_and_files() -> None:
    ended = start(
        Path.cwd(),
        "-m",
        "profkit",
        _PROFKIT_COMPLETE="bash_complete",
        COMP_WORDS="profkit analyze tra",
        COMP_CWORD="2",
    )
    assert (ended.code, ended.out) == (0, "file,tra\n")
