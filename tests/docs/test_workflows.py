"""What the workflows run, a developer can run: targets of make, and what only a forge does."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.blocks import ROOT
from tests.nightly import Outcome, Target, read_targets
from tests.versions import VERSIONS, Versions

WORKFLOWS = ROOT / ".github" / "workflows"
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
OF_A_FORGE = {
    # What a run has changed is uploaded, and a release goes to the package index.
    "git diff | tee build/difference.txt",
    "mkdir dist && mv release/*.whl release/*.tar.gz dist",
}
ON_OTHER_SYSTEMS = "platforms"
"""The job on macOS and Windows, of which the second has no make."""


def read_jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(WORKFLOWS.glob("*.yml")):
        yield from yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()


def test_each_command_of_a_workflow_is_a_target_of_make() -> None:
    commands = {
        step["run"]
        for name, job in read_jobs()
        for step in job["steps"]
        if "run" in step and name != ON_OTHER_SYSTEMS
    }
    assert {".ci/run", "make coverage", "make release", "make site"} <= commands
    for command in commands - OF_A_FORGE - {".ci/run"}:
        tool, target, *_ = command.split()
        assert tool == "make"
        assert target in TARGETS or target.startswith("$"), command


def test_the_versions_that_a_forge_tests_are_those_of_the_table() -> None:
    ((_, job),) = ((name, job) for name, job in read_jobs() if name == "versions")
    rows = job["strategy"]["matrix"]["include"]
    assert tuple(Versions(**row) for row in rows) == VERSIONS


def test_each_target_of_the_night_exists_and_has_its_arguments() -> None:
    targets = list(read_targets((WORKFLOWS / "nightly.yml").read_text(encoding="utf-8"), 7))
    assert {target.name for target in targets} <= TARGETS
    assert {"test-all", "leaks", "test-programs", "fuzz", "bench"} <= {t.name for t in targets}
    assert Target("chaos", ("RUNS=16", "SEED=7")) in targets


def test_a_target_that_fails_says_so_with_its_summary() -> None:
    outcome = Outcome(Target("bench"), 2, 12.4, ("regression: load: 1 x before, 2 x now",))
    assert str(outcome).splitlines() == [
        "bench: FAILED, 12 minutes",
        "  regression: load: 1 x before, 2 x now",
    ]
