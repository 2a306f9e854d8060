"""Progress is shown on a terminal and removed at the end; pipes get none of it."""

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profkit.cli import _progress
from profkit.readers.kineto.read import read_kineto
from profkit.readers.open import load
from profkit.testing import TraceBuilder
from profkit.units import format_bytes
from tests.cli.terminal import ROOT, draw_screen, run_on_terminal

SLOW = """
import sys, time
from profkit.readers import progress
read = progress.ProgressReads.read
def slowly(self, n_bytes=-1):
    time.sleep(0.2)
    return read(self, min(n_bytes, 800))
progress.ProgressReads.read = slowly
from profkit.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The command, with a slow disk: of a trace it reads some pieces, one each fifth of a second."""


class Terminal(io.StringIO):
    """A terminal that stores its output."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.load(9_000_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    return b.write(tmp_path / "a trace.json")


def until(is_so: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(_progress, "QUICK_S", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


@pytest.mark.parametrize("columns", [40, 120])
def test_reading_shows_bytes_and_the_time_left_and_removes_the_line(
    trace: Path, columns: int
) -> None:
    result = run_on_terminal("-c", SLOW, "analyze", str(trace), columns=columns)
    assert result.code == 0
    assert ("reading a trace.json" if columns > 40 else "reading ") in result.terminal
    assert re.search(rf"\d B of {format_bytes(trace.stat().st_size)}", result.terminal)
    assert result.screen[0].startswith("profkit ")
    assert "reading a trace" not in "\n".join(result.screen)
    assert "\x1b[?25l" not in result.terminal, "the cursor is never hidden"
    drawn = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", result.terminal))
    assert max(len(line) for line in drawn if not line.startswith("next:")) <= columns


def test_a_pipe_gets_no_progress(trace: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SLOW, "analyze", str(trace)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert ran.stderr == b""
    assert b"\x1b" not in ran.stdout


def test_progress_is_shown_on_the_terminal_while_stdout_is_a_pipe(trace: Path) -> None:
    arguments = ("analyze", str(trace), "--format", "json")
    result = run_on_terminal("-c", SLOW, *arguments, piped_stdout=True)
    assert result.stdout.startswith("{")
    assert result.stdout.endswith("}\n")
    assert "reading" in result.terminal
    assert "".join(result.screen) == ""


def test_a_dumb_terminal_gets_no_progress(trace: Path) -> None:
    result = run_on_terminal("-c", SLOW, "analyze", str(trace), env={"TERM": "dumb"})
    assert "\x1b" not in result.terminal
    assert result.terminal.startswith("profkit ")


def test_a_quick_command_shows_no_progress() -> None:
    stream = Terminal()
    with _progress.progress(stream) as shown:
        shown.reading("a.json")
        shown.on_progress(5, 10)
    time.sleep(_progress.QUICK_S + 0.1)
    assert stream.getvalue() == ""


def test_each_stage_has_its_line(terminal: Terminal) -> None:
    with _progress.progress(terminal) as shown:
        shown.reading("/data/run/a.json")
        shown.on_progress(3 << 20, 12 << 20)
        until(lambda: "3.00 MiB of 12.0 MiB" in terminal.getvalue())
        for n_mib in (4, 5, 6):
            shown.on_progress(n_mib << 20, 12 << 20)
            time.sleep(0.01)
        until(lambda: re.search(r"6\.00 MiB .*\d s left", terminal.getvalue()) is not None)
        assert "reading a.json" in terminal.getvalue()
        shown.on_stage("read", 1)
        until(lambda: "analyzing" in terminal.getvalue())
        shown.on_stage("rule SYN001", 1)
        shown.on_stage("rule SYN002", 1)
        until(lambda: re.search(r"2 of \d+ rules", terminal.getvalue()) is not None)
        shown.writing("html")
        until(lambda: "writing html" in terminal.getvalue())
        pieces = shown.written(iter([b"x" * 2048, b"y"]))
        assert next(pieces) == b"x" * 2048
        until(lambda: "2.00 KiB" in terminal.getvalue())
        assert list(pieces) == [b"y"]
        expected = shown.written(iter([b"x" * 3072]), of_bytes=4096)
        assert next(expected) == b"x" * 3072
        until(lambda: "3.00 KiB of 4.00 KiB" in terminal.getvalue())

    assert "".join(draw_screen(terminal.getvalue())) == ""


@pytest.mark.parametrize("columns", [40, 60, 70, 80, 100, 200])
def test_the_line_fits_at_any_width(
    terminal: Terminal, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with _progress.progress(terminal) as shown:
        shown.reading(f"/data/{'a_long_name' * 9}.json")
        shown.on_progress(900 << 20, 1000 << 20)
        until(lambda: "900 MiB of 1,000 MiB" in terminal.getvalue())
        for n_mib in (930, 940, 950):
            shown.on_progress(n_mib << 20, 1000 << 20)
            time.sleep(0.01)
        until(lambda: re.search(r"950 MiB .*\d s left", terminal.getvalue()) is not None)
    drawn = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", terminal.getvalue()))
    assert max(map(len, drawn)) <= columns


def test_an_error_removes_the_line(terminal: Terminal) -> None:
    def work() -> Iterator[None]:
        with _progress.progress(terminal) as shown:
            shown.reading("a.json")
            until(lambda: "reading" in terminal.getvalue())
            yield
            raise KeyboardInterrupt

    steps = work()
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert "".join(draw_screen(terminal.getvalue())) == ""


def test_control_characters_in_names_are_escaped(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with _progress.progress(terminal) as shown:
        shown.reading("a[red]\x1b]0;title\x07.json")
        until(lambda: "reading" in terminal.getvalue())
    assert "\x1b]" not in terminal.getvalue()
    assert "\x07" not in terminal.getvalue()
    assert r"a[red]\x1b]0;title\x07.json" in terminal.getvalue()


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1 s"), (59, "59 s"), (61.5, "1 min 2 s")])
def test_the_time_left_is_in_whole_seconds(seconds: float, said: str) -> None:
    assert _progress._seconds(seconds) == said


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.zip", "t.tar"])
def test_load_reports_the_number_of_bytes_read(trace: Path, tmp_path: Path, name: str) -> None:
    import gzip
    import tarfile
    import zipfile

    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(trace.read_bytes()))
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(trace, "t.json")
    elif name.endswith(".tar"):
        with tarfile.open(path, "w") as archive:
            archive.add(trace, "t.json")
    else:
        path.write_bytes(trace.read_bytes())
    told: list[tuple[int, int]] = []
    load(path, on_progress=lambda n_bytes, of: told.append((n_bytes, of)))
    whole = path.stat().st_size
    assert told
    assert {of for _, of in told} == {whole}
    assert all(0 <= n_bytes <= whole for n_bytes, _ in told)
    if name.endswith(("json", "gz")):
        assert told[-1] == (whole, whole)
        assert sorted(told) == told


def test_progress_does_not_change_the_result(trace: Path) -> None:
    heard: list[int] = []
    watched = read_kineto(trace, on_progress=lambda n_bytes, _of: heard.append(n_bytes))
    alone = read_kineto(trace)
    assert heard
    assert len(watched.events) == len(alone.events)
    assert watched.notes.uncompressed_bytes == alone.notes.uncompressed_bytes
