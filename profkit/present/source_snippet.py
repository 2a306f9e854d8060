"""Source lines around a location, if this machine has the file."""

import ast
import os
import stat
import tokenize
import warnings
from pathlib import Path
from typing import Final

from profkit.model.location import Location, SourceSnippet
from profkit.patterns import regex

MAX_FILE_BYTES: Final = 1 << 20
"""A larger file is generated, and not worth reading."""
MAX_LINE_CHARACTERS: Final = 300
_LAST_NAME: Final = regex(r"[^\W\d]\w*$")
_ADDING: Final = frozenset(
    ("append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "submit")
)
"""Methods that add to a container."""
_SUFFIXES: Final = (".py", ".pyx", ".pyi")
"""A recording can name any file of this machine; only source code gets into a report, which may be
shared."""


def source_snippet(
    location: Location, base: str = "", around: int = 3, also: int | None = None
) -> SourceSnippet | None:
    """Read the lines around a location in today's file; None if it cannot be read.

    Args:
        base: The folder of relative paths.
        around: Number of lines before and after it.
        also: The number of another line, which the lines go on to.
    """
    if location.file is None or location.line is None:
        return None
    lines = _read_lines(str(Path(base, location.file)))
    if not 1 <= location.line <= len(lines):
        return None

    begin, end = sorted((location.line, location.line if also is None else also))
    first = max(1, begin - around)
    shown = [line.expandtabs(4).rstrip() for line in lines[first - 1 : end + around]]
    # Empty lines at both ends say nothing.
    while not shown[-1] and first + len(shown) - 1 > end:
        shown.pop()
    while not shown[0] and first < begin:
        shown.pop(0)
        first += 1
    # The indent that all lines share is removed.
    indent = min((len(line) - len(line.lstrip()) for line in shown if line), default=0)
    cut = tuple(line[indent:][:MAX_LINE_CHARACTERS] for line in shown)
    return SourceSnippet(first, cut, location.line)


def find_adding_line(name: str, location: Location, base: str = "") -> int | None:
    """Find the line of a location's file that adds to a container, nearest to the location.

    Lines of the function of the location come before lines of other functions.

    Args:
        name: The container as the program calls it: ``history``, ``Net.seen``, ``self.log``.
        base: The folder of relative paths.

    Returns:
        The number of the line, or None if no line adds to the container.
    """
    last_name = _LAST_NAME.search(name)
    if location.file is None or location.line is None or last_name is None:
        return None
    text = "\n".join(_read_lines(str(Path(base, location.file))))
    if last_name[0] not in text:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # syntax warnings of the program
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    at = location.line
    nodes = list(ast.walk(tree))
    functions = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= at <= (node.end_lineno or at)
    ]
    inner = max(functions, key=lambda node: node.lineno, default=None)
    within = range(0) if inner is None else range(inner.lineno, (inner.end_lineno or at) + 1)

    lines = [line for node in nodes if (line := _match_adding(node, last_name[0])) is not None]
    return min(lines, key=lambda line: (line not in within, abs(line - at), line), default=None)


def _match_adding(node: ast.AST, name: str) -> int | None:
    """Match a node that adds to a container of a name; return its line, or None."""
    match node:
        case ast.Call(func=ast.Attribute(value=container, attr=method)):
            adds = method in _ADDING and _is_named(container, name)
        case ast.AugAssign(target=target, op=ast.Add() | ast.BitOr()):
            adds = _is_named(target, name)
        case ast.Assign(targets=targets, value=value):
            adds = any(
                _is_named(target, name)
                # What is assigned to the name itself is a longer version of it, or a new one.
                and (isinstance(target, ast.Subscript) or _mentions(value, name))
                for target in targets
            )
        case _:
            return None

    return node.lineno if adds else None


def _is_named(node: ast.AST, name: str) -> bool:
    """Tell whether an expression is a container of a name, or an item of it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return name in (getattr(node, "id", None), getattr(node, "attr", None))


def _mentions(value: ast.AST, name: str) -> bool:
    return any(_is_named(node, name) for node in ast.walk(value))


def _read_lines(path: str) -> tuple[str, ...]:
    """Read the lines of a regular source file of limited size; empty for any other file."""
    if not path.endswith(_SUFFIXES):
        return ()
    try:
        # A pipe must not block; Windows does not have this flag.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return ()

    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_FILE_BYTES:
            return ()
        with open(handle, "rb", closefd=False) as file:
            encoding, begun = tokenize.detect_encoding(file.readline)
            text = (b"".join(begun) + file.read(MAX_FILE_BYTES)).decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ()
    finally:
        os.close(handle)
    return tuple(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
