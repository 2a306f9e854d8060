"""The suite of ``examples/pytest`` as users run it: in workers, with a problem and without."""

import shutil
from pathlib import Path

import pytest

from tests.integrations.pytest.test_plugin import PLUGIN
from tests.processes import start

EXAMPLE = Path(__file__).parents[3] / "examples" / "pytest"


@pytest.mark.slow
def test_workers_find_planted_problems_and_their_lines(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "suite")
    training = folder / "training.py"
    fixed = training.read_text()
    end = "    return loss.detach()\n"
    training.write_text(
        fixed.replace(end, f"    print(loss.item())\n    losses.append(loss)\n{end}")
    )
    command = (
        "-m",
        "pytest",
        *PLUGIN,
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "--profkit-save=k.json",
    )

    ended = start(folder, *command)
    assert ended.code == 1, ended.out
    assert "2 failed, 1 passed" in ended.out

    line = fixed[: fixed.index(end)].count("\n") + 1
    assert f"SYN001 item-sync at training.py:{line}" in ended.out
    assert "retained by `training.losses` (list)" in ended.out
    assert len(list((folder / "traces").iterdir())) == 2
    assert "Figures of 3 tests saved" in ended.out

    shutil.rmtree(folder / "traces")
    training.write_text(fixed)
    ended = start(folder, *command, "--profkit-compare=k.json")
    assert ended.code == 0, ended.out
    assert "3 passed" in ended.out
    assert "0 (was 1)" in ended.out or "0 (-100%)" in ended.out
    assert not (folder / "traces").exists()
