"""What a section of the page is: a module with ``section(report, options)``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profkit.engine.glossary import GLOSSARY
from profkit.names import visible
from profkit.units import format_bytes, format_count, format_ns, format_share, format_times

CHART_SCRIPT: Final = "chart.js"
"""What draws with plotly needs it before its own script."""
_PACKAGE: Final = "profkit.render.html"
_CODE: Final = re.compile(r"`{1,2}([^`]+)`{1,2}")


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        id: Its anchor: lower case and dashes.
        title: Its heading, a word or two.
        body: Its HTML, without the heading.
        scripts: Files of this package that draw it, each in the page once.
        data: What they draw, as JSON: in the page it is the text of the element with the id
            ``data-<id>``; nothing is written where it is empty.
        needs_plotly: Whether they draw with plotly.
    """

    id: str
    title: str
    body: Markup
    scripts: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    needs_plotly: bool = False


def fill(template: str, **values: object) -> Markup:
    """A template of this package with values in it, each escaped and made visible.

    Args:
        template: The file's name in ``templates/``.
        **values: What it asks for; all that it asks for.
    """
    return Markup(_environment().get_template(template).render(values))  # noqa: S704  (the environment escapes)


@dataclass(frozen=True)
class Piece:
    """A piece of a sentence.

    Attributes:
        text: It.
        is_code: Whether it is a name of the program or a line of code.
    """

    text: str
    is_code: bool


def marked(text: str) -> tuple[Piece, ...]:
    """A sentence cut at its backticks, which stand around code.

    Args:
        text: Such as ``Empty `history` once``, or the same with two backticks.
    """
    parts = _CODE.split(text)
    found = (Piece(part, is_code=place % 2 == 1) for place, part in enumerate(parts))
    return tuple(each for each in found if each.text)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["term"] = term
    environment.filters |= {
        "ns": format_ns,
        "bytes": format_bytes,
        "share": format_share,
        "count": format_count,
        "times": format_times,
        "marked": marked,
    }
    return environment


def term(word: str, shown: str = "") -> Markup:
    """A word of the glossary that says what it means when the pointer or the keyboard is on it.

    Args:
        word: The word, as in :data:`~profkit.engine.glossary.GLOSSARY`.
        shown: How it stands in its sentence; by default as it is.
    """
    attributes = Markup('<span class="term" tabindex="0" data-tip="{}">{}</span>')
    return attributes.format(GLOSSARY[word].replace("`", ""), shown or word)


def _shown(value: object) -> object:
    """A value as the page has it: of a text whatever a browser would obey is made visible."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
