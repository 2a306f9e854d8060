"""What a section of the page is: a module with ``section(report, options)``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup

from profkit.present.glossary import GLOSSARY
from profkit.present.markup import environment

CHART_SCRIPT: Final = "chart.js"
"""What draws with plotly needs it before its own script."""
_PACKAGE: Final = "profkit.renderers.html"


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


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = environment(_PACKAGE)
    made.globals["term"] = term
    return made


def term(word: str, shown: str = "") -> Markup:
    """A word of the glossary that says what it means when the pointer or the keyboard is on it.

    Args:
        word: The word, as in :data:`~profkit.present.glossary.GLOSSARY`.
        shown: How it stands in its sentence; by default as it is.
    """
    attributes = Markup('<span class="term" tabindex="0" data-tip="{}">{}</span>')
    return attributes.format(GLOSSARY[word].definition.replace("`", ""), shown or word)
