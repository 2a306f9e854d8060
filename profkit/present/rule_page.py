"""A rule's page: its docstring, split into sections of text and code."""

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.detector import Rule
from profkit.patterns import regex

_SECTION: Final = regex(r"^(\S[^\n]*):\n(?=    )", re.MULTILINE)
_CODE: Final = regex(r"^ *(?:\.\. code-block:: *\w+|::)\n\n((?: +[^\n]*\n|\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Passage:
    """A part of a section.

    Attributes:
        text: A paragraph on one line, or code without its indent.
    """

    text: str
    is_code: bool


def rule_page(rule: Rule) -> Mapping[str, tuple[Passage, ...]]:
    """The sections of a rule's page by their headings, such as ``Use instead``."""
    _, *found = _SECTION.split(inspect.cleandoc(rule.__doc__ or "") + "\n")
    return {
        title: _passages(textwrap.dedent(body))
        for title, body in zip(found[::2], found[1::2], strict=True)
    }


def _passages(text: str) -> tuple[Passage, ...]:
    pieces = _CODE.split(text)
    found = []
    for place, piece in enumerate(pieces):
        if place % 2:
            found.append(Passage(textwrap.dedent(piece).strip("\n"), is_code=True))
        else:
            paragraphs = (" ".join(each.split()) for each in piece.split("\n\n"))
            found += [Passage(each, is_code=False) for each in paragraphs if each]
    return tuple(found)
