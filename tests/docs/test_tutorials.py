"""The guide and the tutorials: their files are written and their commands run, one by one."""

import re
from pathlib import Path

import pytest

from profkit.testing import SnapshotBuilder
from tests.docs.blocks import ROOT, all_blocks
from tests.docs.shell import shell

TUTORIALS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/tutorials/*.md"))
SHOWN = re.compile(r"[a-z-]+ [A-Z]{3}\d{3}|\b\w+\.py:\d+|held by: [\w.]+")
"""What the shown output shares with that of another run: rules, source lines and holders."""
FAILS = "  # exit code 1"


def test_each_topic_has_one_tutorial() -> None:
    assert [Path(page).stem for page in TUTORIALS] == [
        "ci-gate",
        "leak",
        "many-ranks",
        "out-of-memory",
        "slow-step",
        "starved-gpu",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/guide.md", *TUTORIALS])
def test_a_guide_does_what_it_says(page: str, tmp_path: Path) -> None:
    snapshot = SnapshotBuilder()
    with snapshot.frame("train.py", 31, "main"):
        snapshot.alloc(1 << 30)
    snapshot.write(tmp_path / "oom.pickle")
    said = ""
    for block in all_blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "console":
            for line in block.text.splitlines():
                said += run(line.removeprefix("$ "), tmp_path)
        elif block.language == "text":
            missing = [shown for shown in SHOWN.findall(block.text) if shown not in said]
            assert not missing, f"{block}: {missing} in\n{said}"


def run(command: str, folder: Path) -> str:
    """Return a command's output without the line ends within a report's sentences."""
    ended = shell(command.removesuffix(FAILS), folder)
    expected = 1 if command.endswith(FAILS) else 0
    assert ended.code == expected, f"{command}\n{ended.out}{ended.err}"
    return " ".join((ended.out + ended.err).split()) + " "
