"""Records the examples anew: trace, provenance, and what the report must say.

Run: ``python traces/record.py [--reports] [NAME…]``; with ``--reports`` the traces stay as they
are, and only what their reports must say is written anew.

Each program of ``programs.json`` runs in a copy of ``examples/`` under ``profkit run``. The names
of the machine and of its folders are replaced in the trace; nothing else in it is touched.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from isal import igzip

import profkit
from profkit.engine.needs import looks_at_a_trace
from profkit.engine.registry import rules

HOME: Final = Path(__file__).parent
EXAMPLES: Final = HOME.parent / "examples"
PROGRAMS: Final[dict[str, Any]] = json.loads((HOME / "programs.json").read_text())
SUFFIX: Final = ".pt.trace.json.gz"
ANY_FOLDER: Final = "/home/user/profkit"
ANY_HOST: Final = "host"
SETTINGS: Final = {"OMP_NUM_THREADS": "1"}  # what else the machine does shows less
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
            one["rule"] for one in report["unchecked"] if _looks_at_a_trace(one["rule"])
        ),
    }


def _looks_at_a_trace(rule: str) -> bool:
    return any(each.INFO.id == rule and looks_at_a_trace(each.INFO.needs) for each in rules())


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


def recorded(name: str, folder: Path) -> Path:
    """Run one program under ``profkit run`` in a folder, and return the trace it left."""
    shutil.copytree(EXAMPLES, folder / "examples")
    program = ["examples/" + name + ".py", *PROGRAMS[name]["arguments"]]
    command = [sys.executable, "-m", "profkit", "run", "--dir", "out", *program]
    path = os.pathsep.join(filter(None, (str(HOME.parent), os.environ.get("PYTHONPATH"))))
    settings = {**os.environ, **SETTINGS, "PYTHONPATH": path}
    subprocess.run(command, cwd=folder, check=True, env=settings)
    (trace,) = (folder / "out").rglob("*" + SUFFIX)
    return trace


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


def provenance(name: str) -> dict[str, Any]:
    """Where a trace comes from."""
    program = (EXAMPLES / f"{name}.py").read_text()
    facts = PROGRAMS[name]
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    return {
        "program": f"examples/{name}.py",
        "program_sha256": hashlib.sha256(program.encode()).hexdigest(),
        "command": " ".join([*settings, "profkit run", f"examples/{name}.py", *facts["arguments"]]),
        "profkit": profkit.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, no GPU"
        if not torch.cuda.is_available()
        else f"{platform.machine()} {platform.system()}, {torch.cuda.get_device_name()}",
        "planted": facts["planted"],
        "rule": facts["rule"],
        "line": fault_line(program),
    }


def record(name: str) -> None:
    """Record one program into its folder, in place of what was there."""
    target = HOME / name
    with tempfile.TemporaryDirectory() as temporary:
        trace = recorded(name, Path(temporary))
        text = neutral(igzip.decompress(trace.read_bytes()), Path(temporary))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        _, _, worker = trace.name.rpartition("_")
        kept = target / f"{ANY_HOST}_{worker}"
        kept.write_bytes(igzip.compress(text, BEST))
    write(target / "provenance.json", provenance(name))
    expect(kept)


def expect(trace: Path) -> None:
    """Write down, beside a trace, what its report says now."""
    report = json.loads(profkit.render(profkit.analyze(trace), "json"))
    write(trace.parent / "expected.json", what_must_hold(report))
    print(f"{trace.relative_to(HOME)}: {trace.stat().st_size / 1000:.0f} kB")


def write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON to be read and compared."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Record the programs named in the arguments, or all."""
    parser = argparse.ArgumentParser(description="Record the examples anew.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; all if none is named")
    parser.add_argument("--reports", action="store_true", help="keep the traces")
    options = parser.parse_args()
    for name in options.names or PROGRAMS:
        if options.reports:
            (trace,) = (HOME / name).glob(f"*{SUFFIX}")
            expect(trace)
        else:
            record(name)


if __name__ == "__main__":
    main()
