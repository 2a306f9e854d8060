"""What the nightly workflow does, on this machine: each of its targets, one after the other.

The targets and their arguments are read from .github/workflows/nightly.yml. A target that fails
does not keep the others from running. The output of each is in build/nightly.

Run: ``make nightly``, or ``make nightly ARGS="--only leaks bench"``
"""

import argparse
import datetime as dt
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).parents[1]
WORKFLOW: Final = ROOT / ".github" / "workflows" / "nightly.yml"
_RUN_NUMBER: Final = "${{ github.run_number }}"
_SUMMARY: Final = re.compile(
    r"^(=+ .*(passed|failed).*=+|regression: .*|\d+ passed.*|.* FAILED: .*)$", re.MULTILINE
)
"""Lines that say what a target came to: pytest's last, and benchmarks that got worse."""


class Target(NamedTuple):
    """A target of make with its arguments, such as ``RUNS=16``."""

    name: str
    arguments: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """How a target ended.

    Attributes:
        code: The exit code of make.
        summary: The lines of its output that say what it came to.
    """

    target: Target
    code: int
    minutes: float
    summary: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line, and the summary below it."""
        state = "ok" if self.code == 0 else "FAILED"
        head = f"{self.target.name}: {state}, {self.minutes:.0f} minutes"
        return "\n  ".join((head, *self.summary))


def main() -> None:
    """Run all targets, or those that are named, and exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=(), help="targets to run")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "nightly")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    has_failed = False
    night = dt.datetime.now(dt.UTC).toordinal()
    for target in read_targets(WORKFLOW.read_text(encoding="utf-8"), night):
        if not options.only or target.name in options.only:
            outcome = run(target, options.folder / f"{target.name}.log")
            print(outcome, flush=True)
            has_failed |= outcome.code != 0
    sys.exit(has_failed)


def read_targets(workflow: str, run_number: int) -> Iterator[Target]:
    """Yield the targets of a workflow's matrix.

    Args:
        workflow: Its YAML.
        run_number: What random signals come from, another one each night.
    """
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    for row in job["strategy"]["matrix"]["include"]:
        arguments = row.get("arguments", "").replace(_RUN_NUMBER, str(run_number))
        yield Target(row["target"], tuple(arguments.split()))


def run(target: Target, log: Path) -> Outcome:
    """Run a target with its output in a file."""
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as sink:
        command = ["make", target.name, *target.arguments]
        ended = subprocess.run(command, cwd=ROOT, stdout=sink, stderr=sink, check=False)

    text = log.read_text(encoding="utf-8", errors="replace")
    summary = tuple(match[0].strip("= ") for match in _SUMMARY.finditer(text))
    return Outcome(target, ended.returncode, (time.monotonic() - start) / 60, summary)


if __name__ == "__main__":
    main()
