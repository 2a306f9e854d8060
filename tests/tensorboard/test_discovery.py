"""Recordings below a logdir are found, whatever their names, and links are followed once."""

import os
import time
from pathlib import Path

import pytest

from profkit.integrations.tensorboard.discovery import (
    MAX_RECORDINGS,
    LogRoot,
    Scanner,
    find_recordings,
    parse_roots,
)

TRACE = "host_1.17.pt.trace.json.gz"


def write_file(path: Path, n_bytes: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * n_bytes)
    return path


def roots(folder: Path) -> tuple[LogRoot, ...]:
    return (LogRoot(str(folder)),)


def test_files_of_one_process_are_one_recording(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "train" / TRACE, 5)
    write_file(tmp_path / "train" / "host_1.17.memory.json.gz", 2)
    write_file(tmp_path / "train" / "host_1.17.snapshot.pickle.gz", 3)
    write_file(tmp_path / "train" / "host_2.18.snapshot.pickle")
    write_file(tmp_path / "train" / "events.out.tfevents.1")

    recording_of = {
        recording.name: recording for recording in find_recordings(roots(tmp_path)).recordings
    }
    assert set(recording_of) == {"host_1.17", "host_2.18"}
    assert (recording_of["host_1.17"].kind, recording_of["host_1.17"].n_bytes) == ("trace", 10)
    assert [Path(path).suffixes[-3] for path in recording_of["host_1.17"].paths] == [
        ".trace",
        ".snapshot",
        ".memory",
    ]
    assert recording_of["host_2.18"].kind == "snapshot"
    assert {recording.run for recording in recording_of.values()} == {"train"}
    assert len({recording.run_id for recording in recording_of.values()}) == 1


def test_a_link_to_a_parent_folder_is_followed_once(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "b" / TRACE)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "a")
    discovery = find_recordings(roots(tmp_path))
    assert len(discovery.recordings) == 1
    assert discovery.is_complete


def test_pipes_devices_and_dead_links_are_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt.trace.json")
    (tmp_path / "dead.pt.trace.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.pt.trace.json").mkdir()
    (tmp_path / "device.pt.trace.json").symlink_to("/dev/zero")
    assert find_recordings(roots(tmp_path)).recordings == ()


def test_undecodable_and_hostile_names_are_safe_to_show(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "<script>alert(1)<" / "script>" / TRACE)
    write_file(tmp_path / "..%2e%2f" / TRACE)
    write_file(tmp_path / "right\u202eleft" / TRACE)
    bad = os.fsencode(tmp_path) + b"/half\xff"
    os.mkdir(bad)  # noqa: PTH102  (a name of bytes)
    with open(bad + b"/" + TRACE.encode(), "wb") as file:  # noqa: PTH123
        file.write(b"x")
    recordings = find_recordings(roots(tmp_path)).recordings
    assert len({recording.id for recording in recordings}) == len(recordings) == 4
    for listed in recordings:
        listed.run.encode()
        assert listed.id.isalnum()
        assert "\u202e" not in listed.run


def test_the_search_is_bounded_and_reports_that_it_is_incomplete(tmp_path: Path) -> None:
    write_file(tmp_path.joinpath(*"abcdefghijklmnopq") / TRACE)
    assert find_recordings(roots(tmp_path)).recordings == ()
    for number in range(MAX_RECORDINGS + 10):
        (tmp_path / f"h_{number}.1.pt.trace.json").touch()
    discovery = find_recordings(roots(tmp_path))
    assert len(discovery.recordings) == MAX_RECORDINGS
    assert not discovery.is_complete


def test_missing_folders_are_reported(tmp_path: Path) -> None:
    discovery = find_recordings((LogRoot("gs://bucket/logs"), LogRoot(str(tmp_path / "no"))))
    assert discovery.missing == ("gs://bucket/logs", str(tmp_path / "no"))


@pytest.mark.parametrize(
    ("logdir", "spec", "expected"),
    [
        ("/logs", None, [("/logs", "")]),
        ("", "/logs", [("/logs", "")]),
        ("", "one:/a,/b", [("/a", "one"), ("/b", "b")]),
        (None, "one:/a:x", [("/a:x", "one")]),
        (None, "gs://bucket/x,/b", [("gs://bucket/x", "gs://bucket/x"), ("/b", "b")]),
        (None, None, []),
    ],
)
def test_the_folders_come_from_tensorboards_options(
    logdir: str | None, spec: str | None, expected: list[tuple[str, str]]
) -> None:
    assert [(root.path, root.name) for root in parse_roots(logdir, spec)] == expected


def test_runs_of_the_same_name_in_two_folders_are_distinct(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "train" / TRACE)
    write_file(tmp_path / "b" / "train" / TRACE)
    both = (LogRoot(str(tmp_path / "a"), "one"), LogRoot(str(tmp_path / "b"), "two"))
    recordings = find_recordings(both).recordings
    assert {recording.run for recording in recordings} == {"one/train", "two/train"}
    assert len({recording.id for recording in recordings}) == 2


def test_a_changed_file_has_the_same_id_and_another_state(tmp_path: Path) -> None:
    path = write_file(tmp_path / TRACE)
    (before,) = find_recordings(roots(tmp_path)).recordings
    write_file(path, 2)
    (after,) = find_recordings(roots(tmp_path)).recordings
    assert before.id == after.id
    assert before.state != after.state


def test_a_scan_returns_at_once_and_finds_new_recordings(tmp_path: Path) -> None:
    scanner = Scanner(roots(tmp_path), pause_s=0)
    assert not scanner.has_scanned
    write_file(tmp_path / TRACE)
    deadline = time.monotonic() + 30
    while not scanner.found.recordings and time.monotonic() < deadline:
        scanner.start()
        time.sleep(0.01)
    (recording,) = scanner.found.recordings
    assert scanner.recording(recording.id) == recording
    assert scanner.recording("../" + recording.id) is None
