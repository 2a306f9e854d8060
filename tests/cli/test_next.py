"""Commands suggest the next one on a terminal, in one line and quoted for the shell."""

import os
import shlex
from pathlib import Path

import click
import pytest

import profkit
from profkit.cli._next_command import after_run
from profkit.testing import TraceBuilder
from tests.cli.terminal import run_on_terminal

MAIN = ("-m", "profkit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("traces")
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.load(9_000_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    b.write(made / "it's starved.json")
    fixed = TraceBuilder()
    for _ in range(3):
        with fixed.step():
            fixed.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    fixed.write(made / "fixed.json")
    return made


def test_after_a_report_its_page_and_its_first_finding_are_suggested(folder: Path) -> None:
    result = run_on_terminal(*MAIN, "analyze", "it's starved.json", cwd=folder, columns=200)
    assert result.code == 0
    *_, last, _ = result.screen
    view, explain = last.removeprefix("next: ").split("  or  ")
    assert shlex.split(view) == ["profkit", "view", "it's starved.json"]
    assert shlex.split(explain) == ["profkit", "explain", "1", "it's starved.json"]


def test_the_suggestion_is_one_short_line(folder: Path, tmp_path: Path) -> None:
    older = tmp_path / "a-name-as-long-as-those-of-recordings-are.pt.trace.json"
    older.write_bytes((folder / "it's starved.json").read_bytes())
    result = run_on_terminal(*MAIN, "analyze", older.name, cwd=tmp_path, columns=200)
    assert result.screen[-2] == f"next: profkit view {older.name}"


def test_after_a_report_with_other_rules_the_finding_has_its_id(folder: Path) -> None:
    command = ("analyze", "it's starved.json", "--select", "DAT")
    last = run_on_terminal(*MAIN, *command, cwd=folder, columns=200).screen[-2]
    assert shlex.split(last)[-3:] == ["explain", "DAT001", "it's starved.json"]


def test_after_the_report_on_the_newest_recording_no_path_is_needed(
    folder: Path, tmp_path: Path
) -> None:
    recorded = tmp_path / "traces" / "train" / "host_1.1700000000000000000.pt.trace.json"
    recorded.parent.mkdir(parents=True)
    recorded.write_bytes((folder / "it's starved.json").read_bytes())
    for paths in ((), (str(recorded),), ("traces/train",)):
        result = run_on_terminal(*MAIN, "analyze", *paths, cwd=tmp_path, columns=200)
        assert result.screen[-2] == "next: profkit view  or  profkit explain 1"


def test_after_a_run_the_page_of_its_trace_and_its_first_finding_are_suggested(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PROFKIT_QUIET", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    files = [str(folder / "it's starved.json"), str(folder / "watched.memory.json.gz")]
    after_run(profkit.analyze(files[0]), files)
    stderr = click.unstyle(capsys.readouterr().err)
    view, explain = stderr.removeprefix("next: ").removesuffix("\n").split("  or  ")
    assert shlex.split(view) == ["profkit", "view", "it's starved.json"]
    assert shlex.split(explain) == ["profkit", "explain", "1", "it's starved.json"]


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "1", "it's starved.json"],
        ["view", "it's starved.json", "--no-open", "-o", "page.html"],
    ],
    ids=" ".join,
)
def test_the_suggested_commands_work(folder: Path, command: list[str]) -> None:
    assert run_on_terminal(*MAIN, *command, cwd=folder).code == 0


def test_after_a_comparison_the_report_with_worse_findings_is_suggested(folder: Path) -> None:
    better = ("diff", "it's starved.json", "fixed.json")
    worse = ("diff", "fixed.json", "it's starved.json")
    assert "next: profkit diff" in run_on_terminal(*MAIN, *better, cwd=folder, columns=200).terminal
    result = run_on_terminal(*MAIN, *worse, cwd=folder, columns=200)
    last = result.screen[-2]
    assert shlex.split(last) == ["next:", "profkit", "analyze", "it's starved.json"]


@pytest.mark.parametrize("format_", ["text", "json"])
def test_nothing_is_suggested_in_a_pipe(folder: Path, format_: str) -> None:
    command = ("analyze", "it's starved.json", "--format", format_)
    result = run_on_terminal(*MAIN, *command, cwd=folder, piped_stdout=True)
    assert "next:" not in result.terminal + result.stdout
    assert result.stdout


def test_profkit_quiet_turns_suggestions_off(folder: Path) -> None:
    command = ("analyze", "it's starved.json")
    assert (
        "next:"
        not in run_on_terminal(*MAIN, *command, cwd=folder, env={"PROFKIT_QUIET": "1"}).terminal
    )


def test_a_path_with_control_characters_is_not_suggested(folder: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "\x1b[31mred.json"
    os.link(folder / "it's starved.json", hostile)
    result = run_on_terminal(*MAIN, "analyze", hostile.name, cwd=tmp_path, env={"NO_COLOR": "1"})
    assert "next:" not in result.terminal
    assert "\x1b[31mred" not in result.terminal


@pytest.mark.parametrize("columns", [40, 200])
def test_a_report_is_as_wide_as_the_terminal_it_is_on(folder: Path, columns: int) -> None:
    command = ("analyze", "fixed.json", "it's starved.json")
    result = run_on_terminal(*MAIN, *command, cwd=folder, columns=columns)
    assert result.code == 0
    assert max(map(len, result.screen)) <= columns
    assert "\x1b[" in result.terminal
    plain = run_on_terminal(*MAIN, *command, cwd=folder, columns=columns, env={"NO_COLOR": "1"})
    assert "\x1b[1m" not in plain.terminal


def test_the_width_of_stderr_does_not_depend_on_stdout(folder: Path) -> None:
    program = (
        "import sys; from profkit.cli._output import stream_layout; "
        "print(stream_layout(sys.stderr)['width'], stream_layout(sys.stdout)['width'])"
    )
    result = run_on_terminal("-c", program, columns=77, piped_stdout=True, cwd=folder)
    assert result.stdout.split() == ["77", "100"]
