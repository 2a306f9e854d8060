"""What lies below a logdir is found, whatever it is called and wherever links lead."""

import os
import time
from pathlib import Path

import pytest

from profkit.integrations.tensorboard.discovery import (
    MOST_RECORDINGS,
    LogRoot,
    find_recordings,
    roots_of,
)
from profkit.integrations.tensorboard.scanner import Scanner

TRACE = "host_1.17.pt.trace.json.gz"


def made(path: Path, n_bytes: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * n_bytes)
    return path


def roots(folder: Path) -> tuple[LogRoot, ...]:
    return (LogRoot(str(folder)),)


def test_a_trace_and_what_lies_beside_it_of_the_same_process_are_one_recording(
    tmp_path: Path,
) -> None:
    made(tmp_path / "train" / TRACE, 5)
    made(tmp_path / "train" / "host_1.17.memory.json.gz", 2)
    made(tmp_path / "train" / "host_1.17.snapshot.pickle.gz", 3)
    made(tmp_path / "train" / "host_2.18.snapshot.pickle")
    made(tmp_path / "train" / "events.out.tfevents.1")
    found = {each.name: each for each in find_recordings(roots(tmp_path)).recordings}
    assert set(found) == {"host_1.17", "host_2.18"}
    assert (found["host_1.17"].kind, found["host_1.17"].n_bytes) == ("trace", 10)
    assert [Path(path).suffixes[-3] for path in found["host_1.17"].paths] == [
        ".trace", ".snapshot", ".memory",
    ]  # fmt: skip
    assert found["host_2.18"].kind == "snapshot"
    assert {each.run for each in found.values()} == {"train"}
    assert len({each.run_id for each in found.values()}) == 1


def test_a_link_to_a_folder_above_is_followed_once(tmp_path: Path) -> None:
    made(tmp_path / "a" / "b" / TRACE)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "a")
    found = find_recordings(roots(tmp_path))
    assert len(found.recordings) == 1
    assert found.is_whole


def test_pipes_sockets_and_dead_links_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt.trace.json")
    (tmp_path / "dead.pt.trace.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.pt.trace.json").mkdir()
    (tmp_path / "device.pt.trace.json").symlink_to("/dev/zero")
    assert find_recordings(roots(tmp_path)).recordings == ()


def test_names_that_are_no_text_or_that_look_like_markup_are_shown_harmlessly(
    tmp_path: Path,
) -> None:
    made(tmp_path / "<script>alert(1)<" / "script>" / TRACE)
    made(tmp_path / "..%2e%2f" / TRACE)
    made(tmp_path / "right\u202eleft" / TRACE)
    bad = os.fsencode(tmp_path) + b"/half\xff"
    os.mkdir(bad)  # noqa: PTH102  (a name of bytes)
    with open(bad + b"/" + TRACE.encode(), "wb") as file:  # noqa: PTH123
        file.write(b"x")
    found = find_recordings(roots(tmp_path)).recordings
    assert len({each.id for each in found}) == len(found) == 4
    for each in found:
        each.run.encode()
        assert each.id.isalnum()
        assert "\u202e" not in each.run


def test_a_deep_tree_and_a_crowd_end_somewhere_and_that_is_told(tmp_path: Path) -> None:
    made(tmp_path.joinpath(*"abcdefghijklmnopq") / TRACE)
    assert find_recordings(roots(tmp_path)).recordings == ()
    for number in range(MOST_RECORDINGS + 10):
        (tmp_path / f"h_{number}.1.pt.trace.json").touch()
    found = find_recordings(roots(tmp_path))
    assert len(found.recordings) == MOST_RECORDINGS
    assert not found.is_whole


def test_a_folder_that_is_not_here_is_named(tmp_path: Path) -> None:
    found = find_recordings((LogRoot("gs://bucket/logs"), LogRoot(str(tmp_path / "no"))))
    assert found.not_here == ("gs://bucket/logs", str(tmp_path / "no"))


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
def test_the_folders_are_those_that_tensorboard_was_started_on(
    logdir: str | None, spec: str | None, expected: list[tuple[str, str]]
) -> None:
    assert [(root.path, root.name) for root in roots_of(logdir, spec)] == expected


def test_two_folders_with_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    made(tmp_path / "a" / "train" / TRACE)
    made(tmp_path / "b" / "train" / TRACE)
    both = (LogRoot(str(tmp_path / "a"), "one"), LogRoot(str(tmp_path / "b"), "two"))
    found = find_recordings(both).recordings
    assert {each.run for each in found} == {"one/train", "two/train"}
    assert len({each.id for each in found}) == 2


def test_an_id_stays_when_the_file_changes_and_its_state_does_not(tmp_path: Path) -> None:
    path = made(tmp_path / TRACE)
    (before,) = find_recordings(roots(tmp_path)).recordings
    made(path, 2)
    (after,) = find_recordings(roots(tmp_path)).recordings
    assert before.id == after.id
    assert before.state != after.state


def test_looking_returns_at_once_and_finds_what_came_later(tmp_path: Path) -> None:
    scanner = Scanner(roots(tmp_path), rest_s=0)
    assert not scanner.has_looked
    made(tmp_path / TRACE)
    deadline = time.monotonic() + 30
    while not scanner.found.recordings and time.monotonic() < deadline:
        scanner.look()
        time.sleep(0.01)
    (recording,) = scanner.found.recordings
    assert scanner.recording(recording.id) == recording
    assert scanner.recording("../" + recording.id) is None
