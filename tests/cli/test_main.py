"""Every error ends with one message and its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import profkit
from profkit import errors
from profkit.cli._exit_codes import run_guarded
from profkit.cli.main import group, main


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=60,
    )


def fail(error: BaseException) -> int:
    raise error


def test_every_module_is_a_command_with_help() -> None:
    context = click.Context(group)
    names = group.list_commands(context)
    assert {"analyze", "demo", "doctor", "rules", "run"} <= set(names)
    for name in names:
        command = group.get_command(context, name)
        assert command is not None
        text = command.get_help(click.Context(command, info_name=f"profkit {name}"))
        assert "Example" in text, name


def test_help_and_version_end_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"profkit {profkit.__version__}\n"
    assert main(["--help"]) == 0
    assert "profkit run train.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyse"], "Did you mean 'analyze'?"),
        (["explain"], "Missing argument"),
        (["analyze", "x", "--top", "0"], "--top"),
        (["analyze", "x", "--format", "jsn"], "Did you mean 'json'?"),
        (["analyze", "x", "--nope"], "--nope"),
    ],
)
def test_invalid_usage_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("a", "b"), 2),
        (errors.MissingFileError("a", "b"), 3),
        (errors.CaptureError("a", "b"), 4),
        (errors.OutputError("a", "b"), 5),
        (errors.PluginError("a", "b"), 6),
        (errors.InternalError("a", "b"), 70),
    ],
)
def test_each_error_has_its_exit_code_message_and_hint(
    error: errors.ProfkitError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_guarded(lambda: fail(error)) == code
    assert capsys.readouterr().err == "profkit: a\n  hint: b\n"


def test_an_interrupt_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "profkit: interrupted.\n"


def test_the_exit_of_a_program_is_not_changed() -> None:
    with pytest.raises(SystemExit, match="17"):
        run_guarded(lambda: fail(SystemExit(17)))


def test_a_bug_prints_one_sentence_and_writes_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("PROFKIT_DEBUG", raising=False)
    assert run_guarded(lambda: fail(KeyError("lane"))) == 70
    message = capsys.readouterr().err
    assert f"this is a bug in profkit {profkit.__version__} (KeyError: 'lane')" in message
    assert "Traceback" not in message
    (file,) = tmp_path.glob("profkit-bug-*.txt")
    assert str(file) in message
    assert "KeyError: 'lane'" in file.read_text(encoding="utf-8")


def test_a_bug_prints_its_traceback_with_profkit_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFKIT_DEBUG", "1")
    assert run_guarded(lambda: fail(ZeroDivisionError())) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_reported_if_no_file_can_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    monkeypatch.delenv("PROFKIT_DEBUG", raising=False)
    assert run_guarded(lambda: fail(ValueError("x"))) == 70
    assert "run it again with PROFKIT_DEBUG=1" in capsys.readouterr().err


def test_a_closed_stdout_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "profkit", "rules"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_and_analysis_load_neither_torch_nor_pandas() -> None:
    done = python(
        "import sys\n"
        "from profkit.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "assert 'rich' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert main(['analyze', '--help']) == 0\n"
        "assert main(['analyze', '/nowhere.json']) == 3\n"
        "assert not {'torch', 'pandas', 'tensorboard'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "/nowhere.json" in done.stderr


@pytest.mark.slow
def test_a_terminal_of_ascii_gets_ascii() -> None:
    done = python(
        "from profkit.cli.main import main\nmain(['rules', 'SYN001'])\nmain(['doctor'])",
        PYTHONIOENCODING="ascii",
        PROFKIT_DIR="/proc/nowhere",
    )
    assert done.stdout.isascii()
    assert "-> Set PROFKIT_DIR" in done.stdout
    assert done.stderr == ""


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "profkit", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"profkit {profkit.__version__}\n")
