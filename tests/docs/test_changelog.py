"""The next release's part of the changelog is short, and in the order in which it is read."""

import subprocess
import sys

from tests.docs.blocks import ROOT

MAX_LINES = 60


def test_the_changelog_of_the_next_release_can_be_written_and_is_short() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9"]
    draft = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = draft.strip().splitlines()
    assert lines[0].startswith("## 9.9.9 (")
    assert len(lines) <= MAX_LINES, "merge what belongs together to what a user cares for"
    assert max(map(len, lines)) <= 120
