"""The list of reviewed warnings and first sentences is that of today's reports."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.present.diagnosis import headline_sentences
from tests.corpus.recordings import CORPUS, needs_corpus, report_on

pytestmark = [needs_corpus, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reviewed-warnings.md"
ROW = re.compile(r"^\| (\S.*?) \| ([A-Z]{3}\d{3}) \|", re.MULTILINE)
SENTENCE_ROW = re.compile(r"^\| (\S+) \| (\S.*?\.) \| \S", re.MULTILINE)
SUFFIXES = re.compile(r"(\.pt\.trace|\.trace)?(\.json|\.pickle)\.gz$")


def recordings() -> Iterator[tuple[str, Path]]:
    """Yield each recording with its name in the list."""
    for folder in ("traces", "snapshots"):
        for path in sorted((CORPUS / folder).iterdir()):
            yield SUFFIXES.sub("", path.name), path
    for job in sorted((CORPUS / "ranks").iterdir()):
        yield job.name, job
        for path in sorted(job.glob("rank*.gz")):
            yield f"{job.name}/{SUFFIXES.sub('', path.name)}", path
    for path in sorted((ROOT / "traces").glob("*/*.trace.json.gz")):
        yield f"traces/{path.parent.name}", path


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
    for name, path in recordings():
        report = report_on(path)
        findings = (*report.findings, *report.health)
        reported |= {(name, finding.rule) for finding in findings if finding.severity != "note"}
    assert reported == listed()


def test_every_first_sentence_is_reviewed() -> None:
    _, section = PAGE.read_text().split("## First sentences")
    reviewed = dict(SENTENCE_ROW.findall(section))
    assert {name: headline_sentences(report_on(path))[0] for name, path in recordings()} == reviewed
