"""The text of a renderer's product in any format, for tests that apply to all of them."""

import csv
import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

from profkit.model.report import Report
from profkit.present.renderer import Renderer, accepted

UNSEEN = ("script", "style", "template")
SAID = ("title", "aria-label", "alt")
VOID = ("meta", "br", "img", "link", "input", "hr", "col")


def made(module: Renderer, report: Report, **options: object) -> bytes:
    """Return a renderer's product; options that it does not have are ignored."""
    return module.render(report, module.Options(**accepted(module, options)))


def for_people(module: Renderer) -> bool:
    """Return whether a format is for people."""
    return module.INFO.is_for_people


def said(module: Renderer, product: bytes) -> str:
    """Return the text of a product, without markup, style and scripts."""
    kind = module.INFO.media_type
    if kind == "text/html":
        page = Page()
        page.feed(product.decode())
        return " ".join(page.words)
    if kind == "text/csv":
        rows = csv.reader(io.StringIO(product.decode()))
        return "\n".join(cell for row in rows for cell in row)
    if "json" in kind:
        return "\n".join(leaf for leaf in leaves(json.loads(product)) if isinstance(leaf, str))
    return product.decode()


def read_as_one(module: Renderer, product: bytes) -> None:
    """Read a product as one document of its media type; any other one raises an error."""
    kind = module.INFO.media_type
    if "json" in kind:
        tree = json.loads(product)
        # Products of plain JSON become an array.
        assert isinstance(tree, list) == (kind == "application/json")
    elif "xml" in kind:
        ET.fromstring(product)  # noqa: S314  (written by the renderer)
    elif kind == "text/html":
        assert product.lower().count(b"<!doctype") <= 1

    if kind == "text/csv":
        titles, *rows = csv.reader(io.StringIO(product.decode()))
        assert {len(row) for row in rows} == {len(titles)}
        assert titles not in rows


def leaves(tree: Any) -> Iterator[Any]:  # noqa: ANN401  (any JSON)
    """Yield the values of a JSON tree, without keys."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


class Page(HTMLParser):
    """A parsed page.

    Attributes:
        words: Its text, and the attributes that screen readers read.
        elements: Its elements, each with the names of its attributes.
        open: Elements that are not closed yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: set[tuple[str, tuple[str, ...]]] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.elements.add((tag, tuple(sorted(name for name, _ in attrs))))
        self.words += [value for name, value in attrs if name in SAID and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close an element."""
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Record text."""
        if not set(self.open) & set(UNSEEN):
            self.words.append(data)
