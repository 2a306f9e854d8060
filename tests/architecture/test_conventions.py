"""Conventions that no linter holds: names, docstrings, units, unfinished code."""

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = sorted(
    chain.from_iterable(
        (ROOT / folder).rglob("*.py")
        for folder in ("profkit", "tests", "examples", "benchmarks", "traces", "docs")
    )
)
BANNED_MODULE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "shared"}
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")
PROTOCOL_CLASSES = {"Thresholds": "profkit/detectors/", "Options": "profkit/renderers/"}
"""Every rule has the one and every renderer the other, as their protocols ask."""
MAX_ATTRIBUTES = 12
LARGE_RECORDS = {
    "profkit/capture/process/doctor.py: Facts": "a plain record of what `profkit doctor` prints",
}
"""Classes of capture that may have more attributes, and why."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Package = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def package() -> Package:
    """All modules, for these tests alone: others walk over every object of their process."""
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "profkit").rglob("*.py"))}


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_overload(node: ast.AST) -> bool:
    return isinstance(node, Function) and any(
        isinstance(decorator, ast.Name) and decorator.id == "overload"
        for decorator in node.decorator_list
    )


def public_definitions(
    module: ast.Module,
) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    """Yield the module, and its public classes, functions and methods, with their names."""
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


def is_record(node: ast.ClassDef) -> bool:
    """Return whether the annotated names of a class are fields: of a dataclass or a named tuple."""
    written = [ast.unparse(part) for part in (*node.decorator_list, *node.bases)]
    return any("dataclass" in text or "NamedTuple" in text for text in written)


def instance_attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that a class stores on ``self``, and its fields."""
    stored = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    if not is_record(node):
        return stored
    fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
    return stored | {field.id for field in fields if isinstance(field, ast.Name)}


def test_no_module_has_a_catch_all_name() -> None:
    assert not [
        place(path)
        for path in CODE
        if BANNED_MODULE_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
    ]


def test_no_code_is_marked_as_unfinished() -> None:
    marks = []
    for path in CODE:
        text = path.read_text()
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = (token for token in tokens if token.type == tokenize.COMMENT)
        marks += [
            f"{place(path)}:{comment.start[0]}: {word}"
            for comment in comments
            for word in UNFINISHED
            if f"{word}:" in comment.string or f"# {word}" in comment.string
        ]
        if "NotImplementedError" in text:
            raised = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Raise))
            marks += [place(path) for node in raised if "NotImplementedError" in ast.dump(node)]

    assert not marks


def test_every_public_definition_has_a_docstring(package: Package) -> None:
    assert not [
        f"{place(path)}: {name}"
        for path, module in package.items()
        for name, node in public_definitions(module)
        if not ast.get_docstring(node)
    ]


def test_arguments_that_are_times_or_sizes_have_their_unit_in_the_name(package: Package) -> None:
    bare = {"time", "size", "duration", "dur", "length_of_time"}
    unclear_arguments = []
    for path, module in package.items():
        for function in ast.walk(module):
            if isinstance(function, Function):
                arguments = function.args
                every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                unclear = {argument.arg for argument in every} & bare
                unclear_arguments += [
                    f"{place(path)}: {function.name}({name})" for name in sorted(unclear)
                ]
    assert not unclear_arguments


def test_no_two_public_classes_have_the_same_name(package: Package) -> None:
    homes = defaultdict(list)
    for path, module in package.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                folder = PROTOCOL_CLASSES.get(node.name)
                if folder is None or not place(path).startswith(folder):
                    homes[node.name].append(place(path))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n def f(self):\n  self.x, self.y = 1, 2\n  self.x += self.z",
        "class A(NamedTuple):\n x: int\n y: int = 0",
        "@dataclass(frozen=True)\nclass A:\n x: int\n y: int\n z = 0",
        "class A:\n z: int\n def f(self):\n  self.x: int = 1\n  for self.y in ():\n   pass",
    ],
)
def test_attributes_are_what_is_stored_on_an_instance(source: str) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert instance_attributes(node) == {"x", "y"}


def test_no_class_of_capture_has_more_than_a_dozen_attributes(package: Package) -> None:
    n_attributes = {
        f"{place(path)}: {node.name}": len(instance_attributes(node))
        for path, module in package.items()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and place(path).startswith("profkit/capture/")
    }
    large = {name: n for name, n in n_attributes.items() if n > MAX_ATTRIBUTES}
    unexpected = {name: n for name, n in large.items() if name not in LARGE_RECORDS}
    assert not unexpected
    assert large.keys() == LARGE_RECORDS.keys(), "an exception is no longer needed"


def test_only_data_of_a_module_are_laid_out_by_hand() -> None:
    mark = "# fmt" + ": skip"
    lines = ((path, line) for path in CODE for line in path.read_text().splitlines())
    assert [
        f"{place(path)}: {line}" for path, line in lines if mark in line and line[0] == " "
    ] == []
