"""The fast tests on several versions of Python, torch and the other packages.

Each combination has an environment of its own in ``build/versions``, so that a second run installs
nothing but profkit: as a wheel, which is tested from a copy of the checkout without ``profkit``, as
whoever installs a release has it. Tests of the package's own files are left out. The table of the
results is in CONTRIBUTING.md; a run writes the rows of what it tested.

Run: ``python tests/versions.py [--only 3.11/2.6.0/lowest ...] [--tests PATH ...]``
"""

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "CONTRIBUTING.md"
PINS: Final = ROOT / "requirements" / "dev.txt"


class Versions(NamedTuple):
    """What an environment is made of.

    Attributes:
        packages: ``pinned`` (those of requirements/dev.txt), ``lowest`` (what pyproject.toml has as
            the lower bound of each), or ``newest`` (what pip installs of its own accord).
    """

    python: str
    torch: str
    packages: str = "pinned"


VERSIONS: Final = (
    Versions("3.11", "2.6.0", "lowest"),
    Versions("3.11", "2.6.0"),
    Versions("3.11", "2.9.1"),
    Versions("3.11", "2.13.0"),
    Versions("3.11", "2.14.1"),
    Versions("3.12", "2.14.1"),
    Versions("3.13", "2.14.1"),
    Versions("3.13", "2.14.1", "newest"),
    Versions("3.14", "2.14.1"),
)
"""The oldest and the newest supported of all, and some between."""

TESTS: Final = ("tests",)
_MIN_FREE_BYTES: Final = 25 << 30
"""An environment with CUDA takes 7 GB: with less space than this it is removed after its run."""
_BEGIN: Final = "<!-- written by make test-versions -->\n"
_END: Final = "<!-- end of the table -->\n"
_HEAD: Final = (
    "| Python | torch | other packages | passed | failed | skipped | on |\n"
    "|---|---|---|---:|---:|---:|---|\n"
)


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

    versions: Versions
    n_passed: int
    n_failed: int
    n_skipped: int
    day: str


def main() -> None:
    """Install and test all versions, or those that arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="what to test: 3.11/2.6.0, 3.11/2.6.0/lowest")
    parser.add_argument("--tests", nargs="+", help="tests to run; the table is then not written")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    options = parser.parse_args()

    chosen = [Versions(*text.split("/")) for text in options.only] if options.only else VERSIONS
    has_failed = False
    for versions in chosen:
        interpreter = find_python(versions.python)
        if interpreter is None:
            print(f"there is no Python {versions.python} on this machine")
            continue

        environment = options.folder / "-".join(versions)
        install(interpreter, versions, environment)
        outcome = run_tests(environment, options.tests or TESTS)
        has_failed |= bool(outcome.failed)
        row = Row(
            versions,
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


def install(interpreter: Path, versions: Versions, environment: Path) -> None:
    """Create an environment with a version of torch, the other packages and profkit."""
    python, is_complete = environment / "bin" / "python", environment / ".complete"
    if not is_complete.exists():
        print(f"installing {' '.join(versions)} into {environment}", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        _run([interpreter, "-m", "venv", environment])
        _pip(python, f"torch=={versions.torch}", *_requirements(versions.packages))

        # What tests need beside. The pins are complete; a resolver would refuse them for packages
        # that no test here uses.
        pins = environment / "pins.txt"
        pins.write_text("".join(_pins_beside(_installed(python))), encoding="utf-8")
        _pip(python, "--no-deps", "--requirement", pins)
        is_complete.touch()
    # Each time: the code may have changed.
    _pip(python, "--no-deps", "--no-build-isolation", "--force-reinstall", ROOT)


def _requirements(packages: str) -> list[str]:
    """Return what profkit and its extras require, at the lowest versions or at any.

    The pinned versions are installed by their own file.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    names = everything.removeprefix("profkit[").removesuffix("]").split(",")
    required = [*project["dependencies"], *(text for name in names for text in extras[name])]
    if packages == "lowest":
        return [text.replace(">=", "==") for text in required]
    return [text for text in required if packages == "newest"]


def _installed(python: Path) -> set[str]:
    """Names of the packages that an environment has: torch, and what torch requires."""
    listed = subprocess.check_output([python, "-m", "pip", "list", "--format", "freeze"], text=True)
    return {_name(line) for line in listed.splitlines()}


def _pins_beside(names: set[str]) -> Iterator[str]:
    """Yield the lines of the pinned set without these packages."""
    for line in PINS.read_text(encoding="utf-8").splitlines(keepends=True):
        if _name(line) not in names:
            yield line


def _name(requirement: str) -> str:
    """Return a requirement's package, as pip compares names."""
    match = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0] if match else "").lower()


def copy_checkout(target: Path) -> Path:
    """Copy what git tracks, but neither the package nor the tests of how its code is written."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if not name.startswith(("profkit/", "tests/architecture/")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def run_tests(environment: Path, tests: Sequence[str]) -> Outcome:
    """Run tests at the lowest priority, in a process that may crash without ending the run."""
    results = environment.absolute() / "results.xml"
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
        "not slow and not checkout",
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
            ["nice", "-n", "19", *command],
            cwd=copy_checkout(environment / "checkout"),
            stdout=sink,
            stderr=sink,
            check=False,
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
    rows = {row.versions: row}
    for line in table.splitlines()[_HEAD.count("\n") :]:
        *names, passed, failed, skipped, day = (cell.strip() for cell in line.strip("|").split("|"))
        tested = Row(Versions(*names), int(passed), int(failed), int(skipped), day)
        rows.setdefault(tested.versions, tested)
    lines = (
        f"| {' | '.join(map(str, (*key, *rows[key][1:])))} |\n" for key in sorted(rows, key=_order)
    )
    return f"{before}{_BEGIN}{_HEAD}{''.join(lines)}{_END}{after}"


def _order(versions: Versions) -> tuple[int, ...]:
    numbers = map(int, f"{versions.python}.{versions.torch}".split("."))
    return (*numbers, ("lowest", "pinned", "newest").index(versions.packages))


def _print(row: Row, outcome: Outcome, environment: Path) -> None:
    print(
        f"{' '.join(row.versions)}: {row.n_passed} passed, {row.n_failed} failed,"
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
