"""Prepares recordings of examples: anonymizes them and extracts the expected part of a report."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any, Final

from isal import igzip

from profkit.capture.process.files import safe_name

SUFFIX: Final = ".pt.trace.json.gz"
ANY_FOLDER: Final = "/home/user/profkit"
ANY_HOST: Final = "host"
GZIP_LEVEL: Final = 3  # isal's best compression

_MEMORY: Final = ("n_events", "n_unfreed", "unfreed_bytes", "n_frees_of_earlier", "peak")
"""The memory figures of a trace."""


def fault_line(program: str) -> int | None:
    """The line number of the comment ``# fault:`` in a program's text; None in a fixed program."""
    lines = program.splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# fault:" in line]
    return marked[0] if marked else None


def expected_part(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a decoded JSON report that every version of profkit must reproduce.

    Skipped checks are not in it: a new rule must not change it unless it reports a finding.
    """
    summary, source = report["summary"], report["source"]
    return {
        "n_events": source["n_events"],
        "step_definition": source["step_definition"],
        "lines_from": source["lines_from"],
        "window_ns": summary["window_ns"],
        "steps": [
            {key: step[key] for key in ("name", "start_ns", "dur_ns", "data_wait_ns", "sync_ns")}
            for step in summary["steps"]
        ],
        "memory": {key: summary["memory"][key] for key in _MEMORY},
        "top_ops": [
            {key: op[key] for key in ("name", "n_calls", "total_ns", "self_ns")}
            for op in summary["top_ops"][:5]
        ],
        "findings": [_brief(finding) for finding in report["findings"]],
        "health": [_brief(finding) for finding in report["health"]],
    }


def _brief(finding: dict[str, Any]) -> dict[str, Any]:
    first = (finding["locations"] or [{"file": None, "line": None}])[0]
    return {
        "rule": finding["rule"],
        "severity": finding["severity"],
        "file": first["file"],
        "line": first["line"],
        "n": finding["n"],
        "cost": finding["cost"],
    }


def _anonymized(text: bytes, folder: Path) -> bytes:
    """A recording's JSON without the names of this machine and of the program's folder."""
    for place in {str(folder), os.path.realpath(folder)}:
        text = text.replace(place.encode(), ANY_FOLDER.encode())
    text = re.sub(rb'("traceName": ?)"[^"]*"', rb'\1"trace.json"', text)
    return re.sub(rb'("host(?:_name)?": ?)"[^"]*"', rb'\1"%s"' % ANY_HOST.encode(), text)


def anonymous_name(name: str) -> str:
    """The name of a file of profkit without the machine's name."""
    return f"{ANY_HOST}_{name.removeprefix(safe_name(socket.gethostname()) + '_')}"


def store_anonymized(recording: Path, target: Path, folder: Path) -> Path:
    """Store a recording in a folder without the names of this machine; return the file.

    Args:
        recording: A gzipped trace or memory record.
        target: The folder to store it in.
        folder: The program's working directory.
    """
    text = _anonymized(igzip.decompress(recording.read_bytes()), folder)
    stored = target / anonymous_name(recording.name)
    # Without the time in its head, the same recording is stored as the same bytes.
    stored.write_bytes(igzip.compress(text, GZIP_LEVEL, mtime=0))
    return stored


def write(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
