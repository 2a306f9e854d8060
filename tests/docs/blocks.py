"""The fenced code blocks of a page."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced code block: its page, language and text, and the line it begins in, from 1.

    ``title`` is the file that it is the content of, or empty.
    """

    page: str
    language: str
    text: str
    line: int
    title: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def all_blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order.

    Args:
        page: Its path below the checkout.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, match[1], match[3], text[: match.start()].count("\n") + 1, match[2] or "")
        for match in _FENCE.finditer(text)
    ]


def blocks(page: str, language: str) -> list[Block]:
    """Return the blocks of one language in a page, in order.

    Args:
        page: Its path below the checkout.
        language: What stands after the fence.
    """
    return [block for block in all_blocks(page) if block.language == language]


def commands(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page's console blocks, each with the place it stands at."""
    return [
        (line.removeprefix("$ "), f"{block.page}:{number}")
        for block in blocks(page, "console")
        for number, line in enumerate(block.text.splitlines(), block.line + 1)
        if line.startswith("$ ")
    ]
