"""Lines of the user's code: those that are meant, of source files alone."""

import os
from pathlib import Path

import pytest

from profkit.model.location import Location
from profkit.present.source_snippet import MAX_FILE_BYTES, find_adding_line, source_snippet

CODE = "".join(f"    line_{n} = {n}\n" for n in range(1, 21))


def at(path: Path, line: int) -> Location:
    return Location(str(path), line, "main")


def test_three_lines_around_come_without_the_indent_of_all(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(CODE)
    snippet = source_snippet(at(path, 10))
    assert snippet is not None
    assert (snippet.first, snippet.marked) == (7, 10)
    assert snippet.lines == tuple(f"line_{n} = {n}" for n in range(7, 14))


@pytest.mark.parametrize(("line", "also"), [(10, 14), (14, 10)])
def test_the_lines_go_on_to_another_line(tmp_path: Path, line: int, also: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(CODE)
    snippet = source_snippet(at(path, line), also=also)
    assert snippet is not None
    assert (snippet.first, snippet.marked) == (7, line)
    assert snippet.lines == tuple(f"line_{n} = {n}" for n in range(7, 18))


@pytest.mark.parametrize(("line", "first", "n_lines"), [(1, 1, 4), (2, 1, 5), (20, 17, 4)])
def test_a_file_has_no_lines_before_its_first_and_after_its_last(
    tmp_path: Path, line: int, first: int, n_lines: int
) -> None:
    path = tmp_path / "train.py"
    path.write_text(CODE)
    snippet = source_snippet(at(path, line))
    assert snippet is not None
    assert (snippet.first, len(snippet.lines)) == (first, n_lines)


def test_empty_lines_at_both_ends_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("\n\na = 1\n\nb = 2\n\n\nc = 3\n")
    snippet = source_snippet(at(path, 5))
    assert snippet is not None
    assert (snippet.first, snippet.lines) == (3, ("a = 1", "", "b = 2", "", "", "c = 3"))
    last = source_snippet(at(path, 3))
    assert last is not None
    assert (last.first, last.lines) == (3, ("a = 1", "", "b = 2"))


def test_lines_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\r\na = '\x0c\x1c\xe9'\r\nb = 2\r\n")
    snippet = source_snippet(at(path, 3), around=0)
    assert snippet is not None
    assert snippet.lines == ("b = 2",)


def test_a_relative_path_begins_in_the_folder_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CODE)
    assert source_snippet(Location("train.py", 3, "main"), str(tmp_path)) is not None


@pytest.mark.parametrize("line", [0, -1, 22, 10**9])
def test_a_line_that_the_file_does_not_have_has_no_excerpt(tmp_path: Path, line: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(CODE)
    assert source_snippet(at(path, line)) is None


def test_a_place_without_file_or_line_has_no_excerpt() -> None:
    assert source_snippet(Location()) is None
    assert source_snippet(Location("train.py")) is None
    assert source_snippet(Location("no/such/train.py", 1)) is None
    assert source_snippet(Location("nul\0byte.py", 1)) is None


@pytest.mark.parametrize("name", ["id_rsa", "passwd", "secrets.env", "notes.txt", "x.py.bak"])
def test_a_recording_cannot_bring_other_files_of_this_machine_into_a_report(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text(CODE)
    assert source_snippet(at(path, 3)) is None


def test_what_is_not_a_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    assert source_snippet(at(pipe, 1)) is None
    device = tmp_path / "device.py"
    device.symlink_to("/dev/zero")
    assert source_snippet(at(device, 1)) is None
    folder = tmp_path / "folder.py"
    folder.mkdir()
    assert source_snippet(at(folder, 1)) is None


def test_a_file_that_is_too_large_or_no_text_is_left_alone(tmp_path: Path) -> None:
    large = tmp_path / "large.py"
    large.write_bytes(b"x\n" * MAX_FILE_BYTES)
    assert source_snippet(at(large, 1)) is None
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 20)
    assert source_snippet(at(binary, 1)) is None


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x" * 5000)
    snippet = source_snippet(at(path, 1))
    assert snippet is not None
    assert len(snippet.lines[0]) == 300


ADDS = """\
class Net:
    def __init__(self):
        self.seen = []  # self.seen.append would be a leak
        self.total = 0

    def note(self, x):
        "self.seen.append(x)"
        self.seen.append(x)

    def forward(self, x):
        y = x * 2
        self.keys = torch.cat(
            [self.keys, y], 1
        )
        cache[x.shape] = y
        groups[0][1].append(y)
        log.setdefault(1, []).append(y)
        total += 1
        seen = [1]
        return y
        self.seen += [y]
"""


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("Net.seen", 2, 8),
        ("self.seen", 11, 21),
        ("net.keys", 12, 12),
        ("cache", 11, 15),
        ("groups", 11, 16),
        ("log", 11, 17),
        ("Net.total", 11, 18),
        ("y", 11, None),
        ("nothing", 11, None),
        ("", 11, None),
    ],
)
def test_the_line_to_edit_is_one_that_adds_to_the_container(
    tmp_path: Path, name: str, line: int, expected: int | None
) -> None:
    path = tmp_path / "train.py"
    path.write_text(ADDS)
    assert find_adding_line(name, at(path, line)) == expected


@pytest.mark.parametrize("text", ["seen.append(", "seen.append(1)\n\0", "(" * 10_000 + "seen"])
def test_a_file_that_is_not_python_has_no_line_to_edit(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    assert find_adding_line("seen", at(path, 1)) is None
