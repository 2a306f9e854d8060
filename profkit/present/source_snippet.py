"""Source lines around a location, if this machine has the file."""

import os
import re
import stat
import tokenize
from pathlib import Path
from typing import Final

from profkit.model.location import Location, SourceSnippet
from profkit.patterns import regex

MAX_FILE_BYTES: Final = 1 << 20
"""A larger file is generated, and not worth reading."""
MAX_LINE_CHARACTERS: Final = 300
_LAST_NAME: Final = regex(r"[^\W\d]\w*$")
_ADDS: Final = (
    r"(\[[^]]*\]\s*=(?!=)|\+=|\|=|\.(append|appendleft|add|extend|insert|update|setdefault|put)\()"
)
"""What follows the name of a container to which something is added."""
_SUFFIXES: Final = (".py", ".pyx", ".pyi")
"""A recording can name any file of this machine; only source code gets into a report, which may be
shared."""


def source_snippet(location: Location, base: str = "", around: int = 3) -> SourceSnippet | None:
    """The lines around a location as in the file now, or None if it cannot be read.

    Args:
        base: The folder of relative paths.
        around: Number of lines before and after it.
    """
    if location.file is None or location.line is None:
        return None
    lines = _lines_of(str(Path(base, location.file)))
    if not 1 <= location.line <= len(lines):
        return None
    first = max(1, location.line - around)
    shown = [line.expandtabs(4).rstrip() for line in lines[first - 1 : location.line + around]]
    indent = min((len(line) - len(line.lstrip()) for line in shown if line), default=0)
    cut = tuple(line[indent:][:MAX_LINE_CHARACTERS] for line in shown)
    return SourceSnippet(first, cut, location.line)


def line_that_adds_to(name: str, location: Location, base: str = "") -> int | None:
    """The line of a location's file that adds to a container, nearest to the location; or None.

    Args:
        name: The container as the program calls it: ``history``, ``Net.seen``, ``self.log``.
        base: The folder of relative paths.
    """
    last = _LAST_NAME.search(name)
    if location.file is None or location.line is None or last is None:
        return None
    adds = re.compile(rf"(?<!\w){last[0]}\s*{_ADDS}")
    lines = _lines_of(str(Path(base, location.file)))
    found = [number for number, line in enumerate(lines, 1) if adds.search(line)]
    at = location.line
    return min(found, key=lambda number: (abs(number - at), number), default=None)


def _lines_of(path: str) -> tuple[str, ...]:
    """The lines of a regular source file of limited size; empty for any other file."""
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
