import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "profkit").rglob("*.py"))
CODE = sorted(
    chain.from_iterable(
        (ROOT / folder).rglob("*.py")
        for folder in ("profkit", "tests", "examples", "benchmarks", "traces", "docs")
    )
)
MODULE_LINES, FUNCTION_LINES, RULE_LINES = 400, 50, 200
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "shared"}
LATER = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def is_overload(function: ast.ClassDef | Function) -> bool:
    """Whether it only spells out a type of the function below it, which has the docstring."""
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


def public_things(path: Path) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    """The module, and its public classes, functions and methods, with their names."""
    module = ast.parse(path.read_text())
    yield "the module", module
    inside: list[ast.Module | ast.ClassDef] = [module]
    for parent in inside:
        for node in parent.body:
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            if not is_overload(node):
                yield node.name, node
            if isinstance(node, ast.ClassDef):
                inside.append(node)


@pytest.mark.parametrize("path", CODE, ids=place)
def test_a_module_fits_in_four_hundred_lines_and_a_function_in_fifty(path: Path) -> None:
    n_lines = len(path.read_text().splitlines())
    limit = RULE_LINES if path.parent == ROOT / "profkit" / "detectors" else MODULE_LINES
    assert n_lines <= limit, f"{place(path)} has {n_lines} lines"
    for function in functions(path):
        length = body_lines(function)
        assert length <= FUNCTION_LINES, f"{place(path)}: {function.name} has {length} lines"


@pytest.mark.parametrize("path", CODE, ids=place)
def test_no_module_is_named_after_a_drawer_for_everything(path: Path) -> None:
    words = set(path.relative_to(ROOT).with_suffix("").parts)
    assert not words & BANNED_NAMES


@pytest.mark.parametrize("path", CODE, ids=place)
def test_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text()
    assert not [word for word in LATER if f"{word}:" in text or f"# {word}" in text]
    for function in functions(path):
        for node in ast.walk(function):
            if isinstance(node, ast.Raise):
                assert "NotImplementedError" not in ast.dump(node), f"{function.name} is a stub"


@pytest.mark.parametrize("path", PACKAGE, ids=place)
def test_everything_public_says_what_it_is(path: Path) -> None:
    silent = [name for name, node in public_things(path) if not ast.get_docstring(node)]
    assert not silent, f"{place(path)}: {', '.join(silent)}"


@pytest.mark.parametrize("path", PACKAGE, ids=place)
def test_times_and_sizes_carry_their_unit_in_the_name(path: Path) -> None:
    bare = {"time", "size", "duration", "dur", "length_of_time"}
    for function in functions(path):
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        unclear = {argument.arg for argument in every} & bare
        assert not unclear, f"{place(path)}: {function.name}({', '.join(unclear)})"
