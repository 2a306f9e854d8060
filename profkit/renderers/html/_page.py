"""The page around the sections: policy, style, scripts and data."""

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup

from profkit.dataclass import dataclass
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.diagnosis import headline_sentences
from profkit.present.facts import origin
from profkit.present.glossary import GLOSSARY
from profkit.renderers.html import (
    critical_path,
    findings,
    flames,
    memory,
    overview,
    ranks,
    recording,
    roofline,
    steps,
    tables,
    timeline,
    what_if,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill


def _glossary(report: Report, options: Options) -> Section:
    return Section("glossary", "Glossary", fill("glossary.html.j2", terms=GLOSSARY))


SECTIONS: Final[tuple[Callable[[Report, Options], Section | None], ...]] = (
    overview.section,
    ranks.section,
    findings.section,
    what_if.section,
    critical_path.section,
    steps.section,
    timeline.section,
    flames.section,
    memory.section,
    roofline.section,
    tables.section,
    recording.section,
    _glossary,
)
"""The sections from top to bottom."""

_PACKAGE: Final = "profkit.renderers.html"
_BASE_SCRIPTS: Final = ("base.js", "tooltips.js", "page.js")
_STYLES: Final = ("style.css", "drawn.css")
FIGURES_ID: Final = "figures"


def page(report: Report, options: Options) -> str:
    """The whole page of one report."""
    name = report.source.path.replace("\\", "/").rsplit("/", 1)[-1]
    heading, *rest = headline_sentences(report)
    head = Head(
        title=f"{name} · profkit" if name else "profkit",
        heading=heading,
        summary=" ".join(rest),
        source=short_path(report.source.path, options.base),
        origin=tuple(origin(report)),
        version=report.profkit,
    )
    sections = [found for each in SECTIONS if (found := each(report, options)) is not None]
    if report.source.kind == "snapshot":
        # It opens with its memory over time; the overview is still the first.
        sections.sort(key=lambda section: section.id not in {"overview", "memory"})
    return assembled(head, sections, figures=overview.comparable_figures(report))


@dataclass(frozen=True)
class Head:
    """The head of a page.

    Attributes:
        title: The name of the window.
        heading: The first sentence.
        source: The recording's path.
        origin: Devices and versions.
        version: That of profkit.
        summary: The other sentences.
    """

    title: str
    heading: str
    source: str
    origin: tuple[str, ...]
    version: str
    summary: str = ""


def assembled(
    head: Head,
    sections: Sequence[Section],
    *,
    figures: Mapping[str, Any] | None = None,
    inner_allowed: Collection[str] = (),
) -> str:
    """A page of some sections, with their scripts, their data and its policy.

    Args:
        figures: What a page of several reports compares, from
            :func:`~profkit.renderers.html.overview.comparable_figures`.
        inner_allowed: Script hashes that the policies of embedded pages allow.
    """
    names = (*_BASE_SCRIPTS, *(script for each in sections for script in each.scripts))
    scripts = [resource(name) for name in dict.fromkeys(names)]
    allowed = map(hashed, scripts)
    data = {each.id: script_json(each.data) for each in sections if each.data}
    if figures is not None:
        data[FIGURES_ID] = script_json(figures)
    return str(
        fill(
            "page.html.j2",
            head=head,
            policy=policy((*allowed, *inner_allowed)),
            style=_inline("".join(map(resource, _STYLES))),
            sections=sections,
            data=data,
            scripts=[_inline(script) for script in scripts],
        )
    )


def resource(name: str) -> str:
    """The text of a file of this package."""
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _inline(text: str) -> Markup:
    """A script or style of this package, which contains no value of a recording."""
    return Markup(text)  # noqa: S704


def script_json(value: Any) -> Markup:  # noqa: ANN401  (what JSON can hold)
    """A value as JSON that is safe within a ``<script>`` element.

    It is ASCII, and nothing in it can end the element or begin a comment.

    Args:
        value: Any JSON value; no number in it is NaN or infinite.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def hashed(script: str) -> str:
    """The source expression by which a policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def policy(allowed: Iterable[str]) -> str:
    """A Content Security Policy that allows some :func:`hashed` scripts, and no request at all.

    Source: https://www.w3.org/TR/CSP3/ ("default-src", "Matching elements to source lists").
    """
    scripts = " ".join(dict.fromkeys(allowed))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
