"""What programs do without profkit, remembered until they change."""

import hashlib
import json
import platform
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.chaos.process import Ended, run_process
from tests.chaos.table import Program
from tests.chaos.watching import bare_environment, program_command, program_file

MAX_BARE_S: Final = 180.0
_MAX_ATTEMPTS: Final = 5
"""Programs of ranks abort now and then as torch ends them, without profkit too."""


class UnfitProgramError(Exception):
    """A program that cannot be compared, since it does something else each time."""


class BareRuns:
    """The bare run of each program, in a file.

    Args:
        file: Where they are remembered.
        n_runs: How often a new program runs, to see whether it does the same each time.
    """

    def __init__(self, file: Path, n_runs: int = 2) -> None:
        self._file = file
        self._n_runs = n_runs
        self._runs = json.loads(file.read_text()) if file.exists() else {}

    def find(self, name: str, program: Program, folder: Path) -> Ended:
        """Return a program's bare run, the quickest if a new program runs several times.

        Raises:
            UnfitProgramError: It does not, or does not end as the table says.
        """
        key = _key(name)
        if key not in self._runs:
            self._runs[key] = asdict(_run(name, program, folder, self._n_runs))
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(self._runs))
        return Ended(**self._runs[key])


def _key(name: str) -> str:
    source = program_file(name).read_bytes()
    versions = f"{version('torch')} {platform.python_version()}"
    return f"{name} {hashlib.sha256(source).hexdigest()[:16]} {versions}"


def _run(name: str, program: Program, folder: Path, n_runs: int) -> Ended:
    command, environment = program_command(name, program), bare_environment()
    runs: list[Ended] = []
    for attempt in range(_MAX_ATTEMPTS):
        ended = run_process(command, folder, environment, MAX_BARE_S)
        if not ended.is_hung and ended.code == program.code:
            runs.append(ended)
        elif attempt == _MAX_ATTEMPTS - 1:
            raise UnfitProgramError(f"{name} ends with {ended.code}, bare:\n{ended.err[-2000:]}")
        if len(runs) == n_runs:
            break
    outputs = {ended.out for ended in runs}
    if len(outputs) > 1:
        raise UnfitProgramError("\n".join([f"{name} prints something else each time:", *outputs]))

    # Standard error is not compared, and is long.
    return replace(min(runs, key=lambda ended: ended.wall_s), err="", sent=())
