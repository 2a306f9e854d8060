"""The tests of recording on several versions of Python and torch, each in its own environment.

The environments stay in ``build/versions``, so that a second run installs nothing. The table of the
results is in CONTRIBUTING.md; a run writes the rows of the versions that it tested.

Run: ``python tests/versions.py [--only 3.11/2.6.0 ...] [--tests PATH ...]``
"""

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "CONTRIBUTING.md"
PINS: Final = ROOT / "requirements" / "dev.txt"

VERSIONS: Final = (
    ("3.11", "2.6.0"), ("3.11", "2.9.1"), ("3.11", "2.13.0"), ("3.11", "2.14.1"),
    ("3.12", "2.14.1"), ("3.13", "2.14.1"), ("3.14", "2.14.1"),
)  # fmt: skip
"""Versions of Python and torch: the oldest and the newest supported of both, and some between."""

TESTS: Final = ("tests/capture", "tests/integrations", "tests/catalogue")
_MIN_FREE_BYTES: Final = 25 << 30
"""An environment with CUDA takes 7 GB: with less space than this it is removed after its run."""
_BEGIN: Final = "<!-- written by make test-versions -->\n"
_END: Final = "<!-- end of the table -->\n"
_HEAD: Final = "| Python | torch | passed | failed | skipped | on |\n|---|---|---:|---:|---:|---|\n"


class Outcome(NamedTuple):
    """What the tests of one environment came to.

    Attributes:
        failed: Names of the tests that failed, or could not begin.
        reasons: Why tests were skipped, with how many each.
    """

    n_passed: int
    failed: tuple[str, ...]
    reasons: Mapping[str, int]


class Row(NamedTuple):
    """One row of the table."""

    python: str
    torch: str
    n_passed: int
    n_failed: int
    n_skipped: int
    day: str


def main() -> None:
    """Install and test all versions, or those that arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="versions of Python and torch: 3.11/2.6.0")
    parser.add_argument("--tests", nargs="+", help="tests to run; the table is then not written")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    options = parser.parse_args()

    chosen = [tuple(pair.split("/")) for pair in options.only] if options.only else VERSIONS
    has_failed = False
    for python, torch in chosen:
        interpreter = find_python(python)
        if interpreter is None:
            print(f"Python {python}, torch {torch}: there is no Python {python} on this machine")
            continue

        environment = options.folder / f"py{python}-torch{torch}"
        install(interpreter, torch, environment)
        outcome = run_tests(environment, options.tests or TESTS)
        has_failed |= bool(outcome.failed)
        row = Row(
            python,
            torch,
            outcome.n_passed,
            len(outcome.failed),
            sum(outcome.reasons.values()),
            dt.datetime.now(dt.UTC).date().isoformat(),
        )
        _print(row, outcome, environment)
        if not options.tests:
            PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
        _remove_if_full(environment)
    sys.exit(has_failed)


def find_python(version: str) -> Path | None:
    """Find an interpreter of a version, such as ``3.12``, on the path or among pyenv's."""
    name = f"python{version}"
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    folders += [path / "bin" for path in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    for candidate in (folder / name for folder in folders):
        # pyenv puts a script of each name on the path, which fails for versions not chosen; and
        # Debian's Python may come without the module that creates environments.
        command = [str(candidate), "-c", "import ensurepip, sys; print(sys.version_info[:2])"]
        if candidate.is_file():
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.stdout.strip() == str(tuple(map(int, version.split(".")))):
                return candidate
    return None


def install(interpreter: Path, torch: str, environment: Path) -> None:
    """Create an environment with a version of torch, the other pinned packages and profkit."""
    python, is_complete = environment / "bin" / "python", environment / ".complete"
    if not is_complete.exists():
        print(f"installing torch {torch} into {environment}", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        _run([interpreter, "-m", "venv", environment])
        _pip(python, f"torch=={torch}")
        pins = environment / "pins.txt"
        pins.write_text("".join(_pins_beside(_requirements_of_torch(python))), encoding="utf-8")
        # The pins are complete. A resolver would refuse them for packages that no test here uses.
        _pip(python, "--no-deps", "--requirement", pins)
        is_complete.touch()
    # Each time: it may have been installed from another checkout.
    _pip(python, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def _requirements_of_torch(python: Path) -> set[str]:
    """Names of the packages of which this torch chooses the version."""
    source = "import importlib.metadata as m, json; print(json.dumps(m.requires('torch')))"
    names: Sequence[str] = json.loads(subprocess.check_output([python, "-c", source]))
    return {_name(requirement) for requirement in names if "extra ==" not in requirement}


def _pins_beside(names: set[str]) -> Iterator[str]:
    """Yield the lines of the pinned set without torch and what torch requires."""
    for line in PINS.read_text(encoding="utf-8").splitlines(keepends=True):
        if _name(line) not in names | {"torch"}:
            yield line


def _name(requirement: str) -> str:
    """Return a requirement's package, as pip compares names."""
    match = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0] if match else "").lower()


def run_tests(environment: Path, tests: Sequence[str]) -> Outcome:
    """Run tests at the lowest priority, in a process that may crash without ending the run."""
    results = environment / "results.xml"
    results.unlink(missing_ok=True)
    command: list[str | Path] = [
        environment.absolute() / "bin" / "python",
        "-m",
        "pytest",
        "-q",
        "-n",
        "1",
        "--dist",
        "loadfile",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--junitxml",
        results,
        *tests,
    ]
    log = environment / "log.txt"
    print(f"testing, output to {log}", flush=True)

    with log.open("w", encoding="utf-8") as sink:
        subprocess.run(
            ["nice", "-n", "19", *command], cwd=ROOT, stdout=sink, stderr=sink, check=False
        )

    if not results.exists():
        sys.exit(f"pytest has not run: see {log}")
    return read_results(results.read_text(encoding="utf-8"))


def read_results(text: str) -> Outcome:
    """Read pytest's JUnit file."""
    n_passed = 0
    failed: list[str] = []
    reasons: dict[str, int] = {}
    for case in ET.fromstring(text).iter("testcase"):  # noqa: S314  (pytest has just written it)
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif skipped is not None:
            reason = skipped.get("message", "")
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            n_passed += 1
    return Outcome(n_passed, tuple(dict.fromkeys(failed)), reasons)


def with_row(page: str, row: Row) -> str:
    """Return the page with a row of its table written anew, or added."""
    before, _, tail = page.partition(_BEGIN)
    table, _, after = tail.partition(_END)
    rows = {row[:2]: row}
    for line in table.splitlines()[_HEAD.count("\n") :]:
        python, torch, *counts, day = (cell.strip() for cell in line.strip("|").split("|"))
        n_passed, n_failed, n_skipped = map(int, counts)
        rows.setdefault((python, torch), Row(python, torch, n_passed, n_failed, n_skipped, day))
    lines = (f"| {' | '.join(map(str, rows[key]))} |\n" for key in sorted(rows, key=_order))
    return f"{before}{_BEGIN}{_HEAD}{''.join(lines)}{_END}{after}"


def _order(versions: tuple[str, str]) -> tuple[int, ...]:
    return tuple(map(int, ".".join(versions).split(".")))


def _print(row: Row, outcome: Outcome, environment: Path) -> None:
    print(
        f"Python {row.python}, torch {row.torch}: {row.n_passed} passed, {row.n_failed} failed,"
        f" {row.n_skipped} skipped ({environment / 'log.txt'})"
    )
    for name in outcome.failed:
        print(f"  failed: {name}")
    for reason, n in outcome.reasons.items():
        print(f"  skipped {n}: {reason}")
    sys.stdout.flush()


def _remove_if_full(environment: Path) -> None:
    if shutil.disk_usage(environment).free < _MIN_FREE_BYTES:
        print(f"removing {environment}: the disk is nearly full")
        shutil.rmtree(environment)


def _pip(python: Path, *arguments: object) -> None:
    _run(
        ["nice", "-n", "19", python, "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    )


def _run(command: Sequence[object]) -> None:
    subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
