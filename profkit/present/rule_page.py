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
    """Split a rule's page into sections by their headings, such as ``Use instead``."""
    # The pattern has one group: titles and bodies alternate after the introduction.
    _, *parts = _SECTION.split(inspect.cleandoc(rule.__doc__ or "") + "\n")
    return {
        title: _split_passages(textwrap.dedent(body))
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _split_passages(body: str) -> tuple[Passage, ...]:
    pieces = _CODE.split(body)
    passages = []
    for place, piece in enumerate(pieces):
        if place % 2:
            passages.append(Passage(textwrap.dedent(piece).strip("\n"), is_code=True))
        else:
            paragraphs = (" ".join(paragraph.split()) for paragraph in piece.split("\n\n"))
            passages += [Passage(text, is_code=False) for text in paragraphs if text]
    return tuple(passages)
