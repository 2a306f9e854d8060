"""Records the examples: trace, provenance, and expected report.

Run: ``python traces/record.py [NAME…]``. With ``--reports`` it updates only the expected reports
of existing traces.

Each program of ``programs.json`` runs in a copy of ``examples/`` under ``profkit run``. The names
of the machine and of its folders are replaced in the trace, and nothing else is changed.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

import profkit
from traces.recordings import SUFFIX, expected_part, fault_line, store_anonymized, write

HOME: Final = Path(__file__).parent
EXAMPLES: Final = HOME.parent / "examples"
PROGRAMS: Final[dict[str, Any]] = json.loads((HOME / "programs.json").read_text())
SETTINGS: Final = {"OMP_NUM_THREADS": "1"}  # less noise from other programs


def recorded(name: str, folder: Path) -> Path:
    """Run one program under ``profkit run`` in a folder, and return its trace."""
    shutil.copytree(EXAMPLES, folder / "examples")
    program = ["examples/" + name + ".py", *PROGRAMS[name]["arguments"]]
    command = [sys.executable, "-m", "profkit", "run", "--dir", "out", *program]
    path = os.pathsep.join(filter(None, (str(HOME.parent), os.environ.get("PYTHONPATH"))))
    settings = {**os.environ, **SETTINGS, "PYTHONPATH": path}
    subprocess.run(command, cwd=folder, check=True, env=settings)
    (trace,) = (folder / "out").rglob("*" + SUFFIX)
    return trace


def provenance(name: str) -> dict[str, Any]:
    """How a trace was recorded."""
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
    """Record one program and replace its folder."""
    target = HOME / name
    with tempfile.TemporaryDirectory() as temporary:
        trace = recorded(name, Path(temporary))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        stored = store_anonymized(trace, target, Path(temporary))
    write(target / "provenance.json", provenance(name))
    expect(stored)


def expect(trace: Path) -> None:
    """Store the expected part of a trace's current report beside it."""
    report = json.loads(profkit.render(profkit.analyze(trace), "json"))
    write(trace.parent / "expected.json", expected_part(report))
    print(f"{trace.relative_to(HOME)}: {trace.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Record the programs given as arguments, or all."""
    parser = argparse.ArgumentParser(description="Record the examples.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; by default all")
    parser.add_argument("--reports", action="store_true", help="update expected reports only")
    options = parser.parse_args()
    for name in options.names or PROGRAMS:
        if options.reports:
            (trace,) = (HOME / name).glob(f"*{SUFFIX}")
            expect(trace)
        else:
            record(name)


if __name__ == "__main__":
    main()
