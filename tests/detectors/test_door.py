"""Rules import through `profkit.rule`, which has what they use and nothing else."""

import ast
from pathlib import Path

import pytest

from profkit import rule

ROOT = Path(__file__).parents[2]
RULES = [path for path in (ROOT / "profkit/detectors").glob("*.py") if path.stem != "__init__"]


def names_from_door(path: Path) -> set[str]:
    """Return the names that a module imports from `profkit.rule`."""
    return {
        alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module == rule.__name__
        for alias in node.names
    }


@pytest.mark.checkout
def test_the_door_has_the_names_that_rules_import_and_no_others() -> None:
    assert set().union(*map(names_from_door, RULES)) == set(rule.__all__)


def test_the_door_lists_each_name_once() -> None:
    assert len(rule.__all__) == len(set(rule.__all__))
