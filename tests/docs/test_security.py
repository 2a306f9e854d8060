"""The promises of SECURITY.md have tests."""

import ast
from pathlib import Path

import pytest

from profkit.patterns import regex

ROOT = Path(__file__).parents[2]
POLICY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = [
    line.strip("| ").rpartition(" | ")
    for line in POLICY.splitlines()
    if line.startswith("|") and "Tests" not in line and "---" not in line
]
TEST = regex(r"`(?P<file>[\w/]+\.py)?::(?P<name>\w+)`")


def find_functions(file: Path) -> set[str]:
    """Find the names of the functions at the top of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "tests"), [(promise, tests) for promise, _, tests in PROMISES])
def test_each_promise_names_tests_that_exist(promise: str, tests: str) -> None:
    named = list(TEST.finditer(tests))
    assert promise
    assert len(named) == len(tests.split(", "))

    # A test without a file is in the file before it.
    file = ""
    for test in named:
        file = test["file"] or file
        assert test["name"] in find_functions(ROOT / file)


def test_all_tables_are_read() -> None:
    assert len(PROMISES) == POLICY.count("\n| ") - POLICY.count("| Promise |")
