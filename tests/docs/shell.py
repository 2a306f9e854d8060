"""Commands of the pages, run in a shell as a reader runs them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.processes import LIMIT_S, Ended


def environment() -> dict[str, str]:
    """This Python's own commands first, and the package from the checkout."""
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": search, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def shell(command: str, folder: Path, **variables: str) -> Ended:
    """Run a command in a folder until it ends.

    Args:
        variables: Of the environment, besides those of :func:`environment`.
    """
    finished = subprocess.run(  # noqa: S602  (the pages are ours and use wildcards)
        command,
        shell=True,
        cwd=folder,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Ended(finished.returncode, finished.stdout, finished.stderr)
