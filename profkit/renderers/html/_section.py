"""A section of the page: what a module's ``build_section(report, options)`` returns."""

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup

from profkit.dataclass import dataclass
from profkit.model.step_summary import is_wait
from profkit.present.glossary import GLOSSARY
from profkit.present.labels import part_label
from profkit.present.markup import environment
from profkit.present.part_colors import color_of

CHART_SCRIPT: Final = "chart.js"
"""Scripts that draw charts need this one before them."""
LIVES_SCRIPT: Final = "lives.js"
"""Scripts that show what was live in a span of time need this one before them."""
_PACKAGE: Final = "profkit.renderers.html"


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        id: Its anchor: lower case and dashes.
        title: Its heading.
        body: Its HTML, without the heading.
        scripts: Files of this package that draw it; each is in the page once.
        data: JSON that the scripts draw, in the element ``data-<id>``; no element if empty.
        figure: Its main figure, which is all that is shown of it while it is folded.
    """

    id: str
    title: str
    body: Markup
    scripts: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    figure: str = ""


def fill(template: str, **values: object) -> Markup:
    """Fill a template of this package with values; each is escaped and made visible."""
    return Markup(_environment().get_template(template).render(values))  # noqa: S704  (the environment escapes)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    templates = environment(_PACKAGE)
    templates.globals["term"] = term
    templates.filters |= {"color": color_of, "is_wait": is_wait, "part_label": part_label}
    return templates


def term(word: str, shown: str = "") -> Markup:
    """Return a glossary term with its definition as a tooltip.

    Args:
        word: A key of :data:`~profkit.present.glossary.GLOSSARY`.
        shown: The text to show; by default the term itself.
    """
    attributes = Markup('<span class="term" tabindex="0" data-tip="{}">{}</span>')
    return attributes.format(GLOSSARY[word].definition.replace("`", ""), shown or word)
