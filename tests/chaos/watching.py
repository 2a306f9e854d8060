"""How a program is started, bare and under ``profkit run``."""

import os
import sys
from pathlib import Path
from typing import Final

from tests.chaos.table import Program

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(__file__).parent
BUILD: Final = ROOT / "build" / "chaos"
SAFE_POINTS: Final = FOLDER / "safe_points"
"""A folder for PYTHONPATH, whose ``sitecustomize`` checks where torch's profiler is started."""
VIOLATIONS: Final = "CHAOS_VIOLATIONS"
"""The variable that names the file for what it finds; without it nothing is checked."""

_SETTINGS: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PROFKIT_DIR",
    "PROFKIT_LISTEN",
    VIOLATIONS,
)
"""Variables that change how many threads torch has, or what profkit does."""


def program_file(name: str) -> Path:
    """Return the source of a program."""
    return FOLDER / "programs" / f"{name}.py"


def bare_environment() -> dict[str, str]:
    """Return the variables of a bare program: the default number of threads."""
    environment = {name: text for name, text in os.environ.items() if name not in _SETTINGS}
    return environment | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}


def watched_environment(violations: Path) -> dict[str, str]:
    """Return the variables of a watched program, whose safe points are checked."""
    paths = os.pathsep.join(map(str, (SAFE_POINTS, ROOT)))
    cache = {"XDG_CACHE_HOME": str(BUILD / "cache")}
    return bare_environment() | {"PYTHONPATH": paths, VIOLATIONS: str(violations)} | cache


def program_command(name: str, program: Program) -> list[str]:
    """Return the command of a bare program."""
    if not program.ranks:
        return [sys.executable, str(program_file(name))]
    return [sys.executable, "-m", *_torchrun(program), str(program_file(name))]


def watched_command(name: str, program: Program, report: Path) -> list[str]:
    """Return the command of a watched program, which writes its report to a file."""
    profkit = ["profkit", "run", "--json", str(report), str(program_file(name))]
    if not program.ranks:
        return [sys.executable, "-m", *profkit]
    return [sys.executable, "-m", *_torchrun(program), "-m", *profkit]


def _torchrun(program: Program) -> list[str]:
    return ["torch.distributed.run", "--standalone", "--nproc-per-node", str(program.ranks)]
