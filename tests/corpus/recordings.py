"""The corpus: real traces and snapshots of other people, and reports on them, each made once."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from isal import igzip

from profkit.api import analyze
from profkit.model.report import Report

CORPUS = Path(os.environ.get("PROFKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
TRACES = CORPUS / "traces"
SNAPSHOTS = CORPUS / "snapshots"

needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="the corpus of real recordings is not here (set PROFKIT_CORPUS)"
)


def trace_path(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


@functools.cache
def report_on(path: Path) -> Report:
    """Return the report of all rules on a recording."""
    return analyze(path, strict=True)


def raw_events(name: str) -> list[dict[str, Any]]:
    """Return the events of a trace as they are in its JSON."""
    content = json.loads(igzip.decompress(trace_path(name).read_bytes()), strict=False)
    return content if isinstance(content, list) else content["traceEvents"]


def expected_figures(kind: str) -> list[dict[str, Any]]:
    """Return the figures of a slow, independent program for each ``trace`` or ``snapshot``."""
    listed = CORPUS / "expected.jsonl"
    lines = listed.read_text().splitlines() if listed.is_file() else []
    return [entry for line in lines if (entry := json.loads(line))["kind"] == kind]
