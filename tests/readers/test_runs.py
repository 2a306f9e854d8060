"""The runs of a folder are found by names and times, the newest first."""

import gzip
import json
import os
import time
from pathlib import Path

import pytest

from profkit.errors import MissingFileError, UnreadableFileError
from profkit.readers.recordings import find_recordings
from profkit.readers.runs import find_runs, find_runs_among, take_two
from profkit.testing import TraceBuilder

NS = 1_000_000_000
START_NS = 1_700_000_000 * NS
TRACE = b'{"schemaVersion": 1, "traceEvents": []}'


def write(path: Path, text: bytes = TRACE, changed_s: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    if changed_s is not None:
        os.utime(path, (changed_s, changed_s))
    return path


def record(folder: Path, after_s: int, worker: str = "host_1") -> Path:
    """Write a file with the name that profkit gives."""
    return write(folder / f"{worker}.{START_NS + after_s * NS}.pt.trace.json.gz")


def names(folder: Path) -> list[str]:
    return [Path(run.newest).name for run in find_runs(str(folder))]


def test_the_time_in_a_name_counts_more_than_the_files_time(tmp_path: Path) -> None:
    late = record(tmp_path / "train", 60)
    early = record(tmp_path / "train", 0)
    os.utime(late, (1_000, 1_000))
    runs = list(find_runs(str(tmp_path)))
    assert [run.newest for run in runs] == [str(late), str(early)]
    assert [run.time_ns - START_NS for run in runs] == [60 * NS, 0]
    assert {run.program for run in runs} == {"train"}


def test_files_of_other_profilers_count_too(tmp_path: Path) -> None:
    record(tmp_path / "train", 0)
    write(tmp_path / "mine.json", TRACE, 1_700_000_100)
    write(tmp_path / "mine-2.json.gz", gzip.compress(TRACE), 1_700_000_050)
    write(tmp_path / "host_7.1700000070000.pt.trace.json", TRACE, 1_000)
    runs = list(find_runs(str(tmp_path)))
    programs = [run.program for run in runs]
    assert programs == ["mine", tmp_path.name, "mine-2", "train"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.json", b'{"loss": [1, 2]}'),
        ("report.json", b'{"profkit": "0.1.0", "source": {"path": "a.json"}}'),
        ("model.pickle", b"\x80\x04\x95weights"),
        ("cut.json.gz", b"\x1f\x8b\x08"),
        ("notes.txt", TRACE),
        (".host_1.1799999999000000000.pt.trace.json.gz.part", TRACE),
        (".hidden.pt.trace.json", TRACE),
        ("empty.json", b""),
    ],
)
def test_other_files_are_not_recordings(tmp_path: Path, name: str, text: bytes) -> None:
    recorded = record(tmp_path / "train", 0)
    write(tmp_path / "train" / name, text)
    assert names(tmp_path) == [recorded.name]


def test_the_files_of_one_process_are_one_recording(tmp_path: Path) -> None:
    trace = record(tmp_path / "train", 0)
    stem = trace.name.removesuffix(".pt.trace.json.gz")
    memory = write(trace.with_name(f"{stem}.memory.json.gz"))
    (run,) = find_runs(str(tmp_path))
    assert run.paths == (str(trace), str(memory))
    assert len(run.recordings) == 1


def test_ranks_of_one_job_are_one_run(tmp_path: Path) -> None:
    for run in (0, 100, 200):
        for rank in (1, 0, 2):
            record(tmp_path / "train", run + rank, f"host_{run + rank}_rank{rank}")
    runs = list(find_runs(str(tmp_path)))
    assert [len(run.recordings) for run in runs] == [3, 3, 3]
    assert [(run.time_ns - START_NS) // NS for run in runs] == [202, 102, 2]


def test_a_later_dump_of_a_rank_is_no_further_rank(tmp_path: Path) -> None:
    for rank in range(2):
        stem = record(tmp_path / "train", rank, f"host_{rank}_rank{rank}").name.split(".")[0]
        write(tmp_path / "train" / f"{stem}.{START_NS + (9 + rank) * NS}.flight.json.gz")
    (run,) = find_runs(str(tmp_path))
    assert (len(run.recordings), run.n_ranks) == (4, 2)


def test_a_rank_that_was_recorded_twice_is_in_two_runs(tmp_path: Path) -> None:
    for after_s in (0, 30):
        for rank in range(2):
            record(tmp_path / "train", after_s, f"host_{rank}_rank{rank}")
    assert [len(run.recordings) for run in find_runs(str(tmp_path))] == [2, 2]


def test_ranks_of_another_start_or_of_long_ago_are_another_run(tmp_path: Path) -> None:
    record(tmp_path / "train", 1000, "host_9_restart1_rank0")
    record(tmp_path / "train", 990, "host_1_restart0_rank1")
    record(tmp_path / "train", 0, "host_1_restart0_rank0")
    assert [len(run.recordings) for run in find_runs(str(tmp_path))] == [1, 1, 1]


def test_ranks_in_folders_of_their_own_are_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        record(tmp_path / "job" / f"rank{rank}", rank, f"host_{rank}_rank{rank}")
    (run,) = find_runs(str(tmp_path))
    assert (len(run.recordings), run.program) == (3, "job")


def test_ranks_that_only_the_files_name_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        info = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": []}
        record(tmp_path / "train", rank, f"node{rank}_17").write_bytes(json.dumps(info).encode())
    record(tmp_path / "train", 5, "single_1")
    assert [len(run.recordings) for run in find_runs(str(tmp_path))] == [1, 2]


def test_the_two_newest_runs_are_of_the_newest_ones_program(tmp_path: Path) -> None:
    first = record(tmp_path / "train", 0)
    record(tmp_path / "eval", 10)
    last = record(tmp_path / "train", 20)
    two = take_two(find_runs(str(tmp_path)))
    assert [run.newest for run in two] == [str(last), str(first)]
    record(tmp_path / "other", 30)
    assert len(take_two(find_runs(str(tmp_path)))) == 1


def test_links_are_followed_once(tmp_path: Path) -> None:
    elsewhere = record(tmp_path / "disk" / "train", 0)
    folder = tmp_path / "traces"
    folder.symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "train" / "loop").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "train" / "gone.pt.trace.json").symlink_to(tmp_path / "nothing")
    assert names(folder) == [elsewhere.name]


def test_a_folder_that_is_missing_or_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="There is no folder"):
        find_runs(str(tmp_path / "traces"))
    with pytest.raises(UnreadableFileError, match="cannot be read"):
        find_runs(str(write(tmp_path / "traces")))
    (tmp_path / "empty").mkdir()
    assert list(find_runs(str(tmp_path / "empty"))) == []


def test_recordings_that_were_named_have_runs_as_well(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.step():
        b.compute("aten::mm", 10)
    for name in ("a.json", "b.json"):
        b.write(tmp_path / name)
    os.utime(tmp_path / "a.json", (2_000_000_000, 2_000_000_000))
    (newest, _) = find_runs_among(find_recordings([str(tmp_path)]))
    assert newest.newest == str(tmp_path / "a.json")


def test_ten_thousand_recordings_take_no_quadratic_time(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(10_000):
        (folder / f"host_{number}_rank{number % 2}.{START_NS + number * NS}.pt.trace.json").touch()
    began = time.process_time()
    assert next(find_runs(str(tmp_path))).time_ns == START_NS + 9_999 * NS
    assert len(list(find_runs(str(tmp_path)))) == 5_000
    # Each search reads names and times: seconds would be a fault of another order.
    assert time.process_time() - began < 20
