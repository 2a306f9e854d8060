"""Measures how the pages of a package read: paragraphs, names, comments and docstrings."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

MIN_LONG_LINES: Final = 15
"""A function of fewer lines is one paragraph, and may have any name."""
_WORDS: Final = Path(__file__).parent
_PRONOUNS: Final = frozenset((_WORDS / "pronouns.txt").read_text().split())
_VERBS: Final = frozenset((_WORDS / "verbs.txt").read_text().split())
"""First words of functions that do something or ask something, and of those that convert."""
_NOUN_DECORATORS: Final = re.compile(r"command|property|fixture|contextmanager|overload|setter")
_ELLIPSIS: Final = re.compile(r"As above|The same|Undo that|That of|Those|Its|Their")
_DIRECTIVE: Final = re.compile(r"#\s*(noqa|type:|fmt:|pragma|mypy|!)")


class PageStyle(NamedTuple):
    """What the pages of a package have too much or too little of.

    Attributes:
        dense: Share of the functions of 15 lines and more without a blank line after the docstring.
        pronouns: Share of the assigned names that are pronouns.
        comments: Comments per 1,000 lines.
        nouns: Share of the docstrings of functions that begin with The, A, Whether or What.
        verbless: Share of the functions of 15 lines and more with no verb in front.
        elliptic: Docstrings that need their neighbours.
    """

    dense: float
    pronouns: float
    comments: float
    nouns: float
    verbless: float
    elliptic: int


def measure(paths: Iterable[Path]) -> PageStyle:
    """Measure the style of some files."""
    sources = [path.read_text(encoding="utf-8") for path in paths]
    functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, list[str]]] = []
    names: list[str] = []
    for source in sources:
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node, lines))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(node.id)

    long = [(node, lines) for node, lines in functions if is_long(node)]
    docstrings = [text for node, _ in functions if (text := ast.get_docstring(node))]
    n_lines = sum(source.count("\n") for source in sources)
    return PageStyle(
        dense=share(is_dense(node, lines) for node, lines in long),
        pronouns=share(name in _PRONOUNS for name in names),
        comments=1000 * sum(map(count_comments, sources)) / max(1, n_lines),
        nouns=share(
            text.split()[0] in {"The", "A", "An", "Whether", "What"} for text in docstrings
        ),
        verbless=share(is_verbless(node) for node, _ in long),
        elliptic=sum(bool(_ELLIPSIS.match(text)) for text in docstrings),
    )


def share(answers: Iterable[bool]) -> float:
    """Return how many of some answers are yes, as a share."""
    yes = list(answers)
    return sum(yes) / max(1, len(yes))


def is_long(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function, without its docstring, needs paragraphs."""
    return (node.end_lineno or 0) - first_line(node) + 1 >= MIN_LONG_LINES


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of the first line after a function's docstring."""
    has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
    return node.body[1 if has_docstring else 0].lineno


def is_dense(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> bool:
    """Return whether a function's body has no blank line."""
    return all(line.strip() for line in lines[first_line(node) - 1 : node.end_lineno])


def is_verbless(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function that is neither a property nor a context manager has a noun's name.

    The name of a test is a sentence, and that of a program's entry is its convention.
    """
    if any(_NOUN_DECORATORS.search(ast.unparse(decorator)) for decorator in node.decorator_list):
        return False
    if node.name == "main" or node.name.startswith(("__", "test_")):
        return False
    return first_word(node.name) not in _VERBS


def first_word(name: str) -> str:
    """Return the first word of a name in snake case."""
    return name.strip("_").partition("_")[0]


def count_comments(source: str) -> int:
    """Count the comments that people read."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return sum(not _DIRECTIVE.match(comment) for comment in comments)
