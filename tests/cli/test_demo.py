"""``profkit demo`` records its program and reports the planted problems."""

from pathlib import Path

import pytest

from profkit.cli.demo import _COPY, _PROGRAM, _copy_program
from profkit.errors import OutputError
from tests.processes import start_forked


def test_it_reports_the_line_of_every_planted_problem(tmp_path: Path) -> None:
    ended = start_forked(tmp_path, "-m", "profkit", "demo", "--dir", "t")
    assert ended.code == 0, ended.err
    lines = (tmp_path / "t" / _COPY).read_text(encoding="utf-8").splitlines()
    wait = next(n for n, line in enumerate(lines, 1) if "in steps:" in line)
    leaked = next(n for n, line in enumerate(lines, 1) if "# fault 3" in line)
    assert f"t/{_COPY}:{wait}  warning starved-by-loader" in ended.out
    assert "item-sync" not in ended.out, "on a CPU nothing waits"
    assert f"t/{_COPY}:{leaked}  " in ended.out
    assert "unfreed-tensors" in ended.out
    (trace,) = (tmp_path / "t" / "demo").glob("*.pt.trace.json.gz")
    assert trace.name in ended.err
    assert "tensorboard --logdir t" in ended.err


def test_a_changed_program_is_not_overwritten_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = _copy_program(tmp_path, force=False)
    assert program.read_bytes() == _PROGRAM.read_bytes()
    program.write_text("# fixed", encoding="utf-8")
    _copy_program(tmp_path, force=False)
    assert program.read_text(encoding="utf-8") == "# fixed"
    assert "--force restores it" in capsys.readouterr().err
    _copy_program(tmp_path, force=True)
    assert program.read_bytes() == _PROGRAM.read_bytes()


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be written"):
        _copy_program(tmp_path / "file" / "traces", force=False)
