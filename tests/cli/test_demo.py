"""``profkit demo`` records its program and reports the planted problems."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.cli.demo import _COPY, _PROGRAM, _copy_program
from profkit.errors import OutputError


def test_it_reports_the_line_of_every_planted_problem(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "profkit", "demo", "--dir", "t"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "t" / _COPY).read_text(encoding="utf-8").splitlines()
    wait = next(n for n, line in enumerate(lines, 1) if "in steps:" in line)
    item = next(n for n, line in enumerate(lines, 1) if "# fault 2" in line)
    leaked = next(n for n, line in enumerate(lines, 1) if "# fault 3" in line)
    assert f"t/{_COPY}:{wait}  warning starved-by-loader" in done.stdout
    assert f"t/{_COPY}:{item}  note item-sync" in done.stdout
    assert f"t/{_COPY}:{leaked}  " in done.stdout
    assert "unfreed-tensors" in done.stdout
    (trace,) = (tmp_path / "t" / "demo").glob("*.pt.trace.json.gz")
    assert trace.name in done.stderr
    assert "tensorboard --logdir t" in done.stderr


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
