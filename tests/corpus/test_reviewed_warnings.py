"""The list of reviewed warnings is that of today's reports."""

import re
from pathlib import Path

import pytest

from tests.corpus.recordings import CORPUS, needs_corpus, report_on

pytestmark = [needs_corpus, pytest.mark.slow]
PAGE = Path(__file__).parents[2] / "docs" / "reviewed-warnings.md"
ROW = re.compile(r"^\| (\S.*?) \| ([A-Z]{3}\d{3}) \|", re.MULTILINE)


def listed() -> set[tuple[str, str]]:
    """Recording and rule of each row; a row can have several recordings."""
    judged = set()
    for names, rule in ROW.findall(PAGE.read_text()):
        for name in names.split(", "):
            first, _, last = name.partition(" … ")
            every = [first]
            if last:  # rank0 … rank3-memory-snapshot
                stem, end = first.removesuffix("rank0"), last.partition("-")[2]
                every = [f"{stem}rank{number}-{end}" for number in range(4)]
            judged |= {(recording_name, rule) for recording_name in every}
    return judged


def test_every_warning_on_a_real_recording_is_reviewed() -> None:
    reported = set()
    for folder in ("traces", "snapshots"):
        for path in sorted((CORPUS / folder).iterdir()):
            report = report_on(path)
            name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pickle")
            findings = (*report.findings, *report.health)
            reported |= {(name, finding.rule) for finding in findings if finding.severity != "note"}
    assert reported == listed()
