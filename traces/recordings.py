"""What every recording of an example is put through, whichever machine made it.

The names of the machine and of its folders are replaced, and what its report must say is written
down beside it.
"""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any, Final

from isal import igzip

from profkit.capture.files import safe_name
from profkit.engine.needs import can_run_on_trace
from profkit.engine.registry import rules

SUFFIX: Final = ".pt.trace.json.gz"
ANY_FOLDER: Final = "/home/user/profkit"
ANY_HOST: Final = "host"
BEST: Final = 3  # the smallest that isal writes

_MEMORY: Final = ("n_events", "n_unfreed", "unfreed_bytes", "n_frees_of_earlier", "peak")
"""What a trace tells of memory."""


def fault_line(program: str) -> int | None:
    """The line that the comment ``# fault:`` marks, from 1, or None in a cured program.

    Args:
        program: The program's text.
    """
    lines = program.splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# fault:" in line]
    return marked[0] if marked else None


def what_must_hold(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a JSON report that another version of profkit must give too.

    Args:
        report: The report, decoded.
    """
    summary, source = report["summary"], report["source"]
    return {
        "n_events": source["n_events"],
        "steps_are": source["steps_are"],
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
        "unchecked": sorted(
            one["rule"] for one in report["unchecked"] if _can_run_on_trace(one["rule"])
        ),
    }


def _can_run_on_trace(rule: str) -> bool:
    return any(each.INFO.id == rule and can_run_on_trace(each.INFO.needs) for each in rules())


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


def neutral(text: bytes, folder: Path) -> bytes:
    """A trace's text without the names of this machine and its folders.

    Args:
        text: The JSON as it was recorded.
        folder: Where the program ran.
    """
    for place in {str(folder), os.path.realpath(folder)}:
        text = text.replace(place.encode(), ANY_FOLDER.encode())
    text = re.sub(rb'("traceName": ?)"[^"]*"', rb'\1"trace.json"', text)
    return re.sub(rb'("host(?:_name)?": ?)"[^"]*"', rb'\1"%s"' % ANY_HOST.encode(), text)


def neutral_name(name: str) -> str:
    """A recording's file name without the machine's.

    Args:
        name: As profkit named the file.
    """
    return f"{ANY_HOST}_{name.removeprefix(safe_name(socket.gethostname()) + '_')}"


def keep_neutral(recording: Path, target: Path, folder: Path) -> Path:
    """Put a recording that is JSON into a folder, without the names of this machine.

    Args:
        recording: A trace, or what was watched of memory, packed.
        target: Where it goes.
        folder: Where the program ran.

    Returns:
        The file.
    """
    text = neutral(igzip.decompress(recording.read_bytes()), folder)
    kept = target / neutral_name(recording.name)
    kept.write_bytes(igzip.compress(text, BEST))
    return kept


def write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON to be read and compared."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
