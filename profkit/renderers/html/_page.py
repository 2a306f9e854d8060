"""The page around the sections: its policy, its style, its scripts, its data."""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.headline import headline, origin
from profkit.renderers.html import (
    findings,
    flames,
    glossary,
    memory,
    overview,
    recording,
    steps,
    tables,
    timeline,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._summary_card import card

SECTIONS: Final[tuple[Callable[[Report, Options], Section | None], ...]] = (
    overview.section,
    findings.section,
    steps.section,
    timeline.section,
    flames.section,
    memory.section,
    tables.section,
    recording.section,
    glossary.section,
)
"""What is on the page, from top to bottom."""

_PACKAGE: Final = "profkit.renderers.html"
_BASE_SCRIPTS: Final = ("base.js", "page.js")
_STYLES: Final = ("style.css", "drawn.css")
PLOTLY_ID: Final = "plotly-packed"
CARD_ID: Final = "card"


def page(report: Report, options: Options) -> str:
    """The whole page of one report.

    Args:
        options: What the reader chose.
    """
    sections = [found for each in SECTIONS if (found := each(report, options)) is not None]
    return assembled(
        Head(
            title=_title(report),
            heading=headline(report),
            source=short_path(report.source.path, options.base),
            origin=tuple(origin(report)),
            version=report.profkit,
        ),
        sections,
        card=card(report),
    )


@dataclass(frozen=True)
class Head:
    """What stands above the sections of a page.

    Attributes:
        title: The title of the browser's tab.
        heading: The first heading.
        source: What was analyzed, as it is shown; empty for nothing.
        origin: Where it comes from, in a few words each.
        version: profkit's version.
    """

    title: str
    heading: str
    source: str
    origin: tuple[str, ...]
    version: str


def assembled(
    head: Head,
    sections: Sequence[Section],
    *,
    card: Mapping[str, Any] | None = None,
    scripts_within: Collection[str] = (),
) -> str:
    """A page of some sections, with their scripts, their data and its policy.

    Args:
        head: What stands above them.
        sections: The sections, from top to bottom.
        card: What a page of several reports tells of this one; None for nothing.
        scripts_within: What the policy of pages within this one allows, as it stands there.
    """
    names = (*_BASE_SCRIPTS, *(script for each in sections for script in each.scripts))
    scripts = [resource(name) for name in dict.fromkeys(names)]
    with_plotly = any(each.needs_plotly for each in sections)
    allowed = [hashed(text) for text in (*scripts, *((get_plotlyjs(),) if with_plotly else ()))]
    data = {each.id: script_json(each.data) for each in sections if each.data}
    if card is not None:
        data[CARD_ID] = script_json(card)
    return str(
        fill(
            "page.html.j2",
            head=head,
            policy=policy((*allowed, *scripts_within)),
            style=_inline("".join(map(resource, _STYLES))),
            sections=sections,
            data=data,
            scripts=[_inline(script) for script in scripts],
            plotly=Markup(packed_plotly()) if with_plotly else None,  # noqa: S704  (base64)
            plotly_id=PLOTLY_ID,
        )
    )


def _title(report: Report) -> str:
    name = report.source.path.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name} · profkit" if name else "profkit"


def resource(name: str) -> str:
    """The text of a file of this package.

    Args:
        name: The file's name.
    """
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _inline(text: str) -> Markup:
    """A script or style of ours, which no value of a recording ever enters."""
    return Markup(text)  # noqa: S704


def script_json(value: Any) -> Markup:  # noqa: ANN401  (what JSON can hold)
    """A value as JSON that is safe within a ``<script>`` element.

    Nothing in it can end the element or begin a comment, and no character in it is beyond ASCII.

    Args:
        value: What JSON can hold; no number in it is NaN or infinite.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def hashed(script: str) -> str:
    """What a policy calls a script that it allows.

    Args:
        script: The script's text.
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def policy(allowed: Iterable[str]) -> str:
    """A content security policy that allows some scripts, and no request at all.

    Args:
        allowed: What :func:`hashed` says of each.

    Source: https://www.w3.org/TR/CSP3/ ("default-src", "Matching elements to source lists").
    """
    scripts = " ".join(dict.fromkeys(allowed))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def packed_plotly() -> str:
    """Plotly's script out of the installed wheel, as gzip in base64: 2 MB instead of 5.

    ``base.js`` unpacks it when the first chart is about to be seen, so that the page opens
    without waiting for it.
    """
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()
