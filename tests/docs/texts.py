"""Where texts, docstrings and comments use a word that the glossary does not allow.

Run: ``python -m tests.docs.texts profkit/engine README.md`` lists the places.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from profkit.present.glossary import GLOSSARY, PLAIN_ENGLISH

ROOT = Path(__file__).parents[2]
GLOSSARY_FILES = {"profkit/present/glossary.py", "docs/glossary.md"}
NOT_USED = {
    word: term for term, entry in GLOSSARY.items() for word in entry.not_used
} | dict.fromkeys(PLAIN_ENGLISH, "plain English")
_CODE = re.compile(
    r"```.*?```|``[^`]*``|`[^`\n]*`|\{[^{}]*\}|\]\([^)]*\)|:\w+:`[^`]*`|profkit(?:\.\w+)+",
    re.DOTALL,
)
_PROSE_FILES = (".md", ".j2", ".js", ".html")
_LONGEST_FIRST = sorted(NOT_USED, key=len, reverse=True)
_NAMES, _SIGNS = (
    "|".join(re.escape(word) for word in _LONGEST_FIRST if word[0].isalpha() is is_name)
    for is_name in (True, False)
)
# What may stand before a word is asked once at each place, not once for each word.
_WORDS = re.compile(rf"(?<![\w.-])(?:{_NAMES})(?![\w-])|{_SIGNS or '(?!)'}", re.IGNORECASE)


def files(paths: Iterable[str] = ("profkit", "docs", "examples", ".")) -> Iterator[Path]:
    """Committed files with prose below some paths; of ``.`` the Markdown files alone."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in sorted(set(listed)):
        path = ROOT / name
        in_package = name.startswith("profkit/")
        is_prose = path.suffix in _PROSE_FILES or (in_package and path.suffix == ".py")
        if is_prose and path.exists() and name not in GLOSSARY_FILES:
            yield path


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Passages of a file with the line on which each begins; of Python strings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def violations(path: Path) -> Iterator[str]:
    """Yield each violation of a file as ``file:line: "word" (term)``."""
    for line, text in prose(path):
        blanked = _CODE.sub(lambda m: "\n" * m[0].count("\n") + "}", text)
        for match in _WORDS.finditer(blanked):
            at = line + blanked.count("\n", 0, match.start())
            word = " ".join(match[0].lower().split())
            yield f'{path.relative_to(ROOT)}:{at}: "{word}" ({NOT_USED.get(word, "")})'


if __name__ == "__main__":
    all_violations = [
        violation for path in files(sys.argv[1:] or ["."]) for violation in violations(path)
    ]
    print(*dict.fromkeys(all_violations), f"{len(all_violations)} places", sep="\n")
