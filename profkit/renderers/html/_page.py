"""The page around the sections: policy, style, scripts and data."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.model.location import base_name
from profkit.model.report import Report
from profkit.names import short_path
from profkit.patterns import regex
from profkit.present.diagnosis import cautions, headline_sentences
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


def _build_glossary(report: Report, options: Options) -> Section:
    body = fill("glossary.html.j2", terms=GLOSSARY)
    return Section("glossary", "Glossary", body, figure=counted(len(GLOSSARY), "term"))


SECTIONS: Final[tuple[Callable[[Report, Options], Section | None], ...]] = (
    overview.build_section,
    findings.build_section,
    ranks.build_section,
    timeline.build_section,
    what_if.build_section,
    critical_path.build_section,
    steps.build_section,
    flames.build_section,
    memory.build_section,
    roofline.build_section,
    tables.build_section,
    recording.build_section,
    _build_glossary,
)
"""The sections from top to bottom."""
_OPEN: Final = frozenset({"overview", "ranks", "findings", "timeline"})
"""What a reader sees at once; the others are folded to their title and main figure."""

_PACKAGE: Final = "profkit.renderers.html"
_BASE_SCRIPTS: Final = ("base.js", "tooltips.js", "page.js")
_STYLES: Final = ("style.css", "drawn.css")
FIGURES_ID: Final = "figures"
_COMPRESSED: Final = frozenset({"critical-path", "flames", "memory", "tables"})
"""Sections whose scripts wait for their data."""
_MIN_COMPRESSED: Final = 4_000
_LEVEL: Final = 6
_FOR_AUTHORS: Final = regex(
    r"^\s*/\*.*?\*/[ ]*\n | ^\s*//[^\n]*\n | ^[ ]+", re.MULTILINE | re.DOTALL | re.VERBOSE
)


def build_page(report: Report, options: Options) -> str:
    """Return the whole page of one report."""
    name = base_name(report.source.path)
    heading, *sentences = headline_sentences(report)
    caution = " ".join(cautions(report))
    summary = " ".join(sentences)
    # A caution that the headline leaves out, since it says something worse, is left out here too.
    caution = caution if summary.endswith(caution) else ""
    head = Head(
        title=f"{name} · profkit" if name else "profkit",
        heading=heading,
        summary=summary.removesuffix(caution).rstrip(),
        caution=caution,
        source=short_path(report.source.path, options.base),
        origin=tuple(origin(report)),
        version=report.profkit,
    )

    built = (build(report, options) for build in SECTIONS)
    sections = [section for section in built if section is not None]
    if report.source.kind == "snapshot":
        # What it is about, its memory over time, follows what to do.
        sections.sort(key=lambda section: section.id not in {"overview", "findings", "memory"})
    # Without times, memory is what the report is about.
    opened = _OPEN if report.summary.breakdown is not None else _OPEN | {"memory"}
    folded = {section.id for section in sections} - opened
    return assemble_page(head, sections, figures=overview.collect_figures(report), folded=folded)


@dataclass(frozen=True)
class Head:
    """The head of a page.

    Attributes:
        title: The name of the window.
        heading: The first sentence.
        source: The recording's path.
        origin: Devices and versions.
        version: Version of profkit.
        summary: The other sentences.
        caution: Why figures are less reliable, or nothing.
    """

    title: str
    heading: str
    source: str
    origin: tuple[str, ...]
    version: str
    summary: str = ""
    caution: str = ""


def assemble_page(
    head: Head,
    sections: Sequence[Section],
    *,
    figures: Mapping[str, Any] | None = None,
    inner_allowed: Collection[str] = (),
    folded: Collection[str] = (),
) -> str:
    """Return a page of some sections, with their scripts, their data and its policy.

    Args:
        figures: What a page of several reports compares, from
            :func:`~profkit.renderers.html.overview.collect_figures`.
        inner_allowed: Script hashes that the policies of embedded pages allow.
        folded: Ids of sections that are closed at first.
    """
    names = (*_BASE_SCRIPTS, *(script for section in sections for script in section.scripts))
    scripts = [_pack(read_resource(name)) for name in dict.fromkeys(names)]
    allowed = map(hashed, scripts)

    data = {section.id: _store(section) for section in sections if section.data}
    if figures is not None:
        data[FIGURES_ID] = encode_script_json(figures)

    return str(
        fill(
            "page.html.j2",
            head=head,
            policy=build_policy((*allowed, *inner_allowed)),
            style=_inline(_pack("".join(map(read_resource, _STYLES)))),
            sections=sections,
            folded=folded,
            data=data,
            scripts=[_inline(script) for script in scripts],
        )
    )


def _pack(script: str) -> str:
    """Return a script without what only its authors read: comments of whole lines, and indents.

    No string or template of this package's scripts goes over several lines.
    """
    return _FOR_AUTHORS.sub("", script)


def read_resource(name: str) -> str:
    """Return the text of a file of this package."""
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _inline(text: str) -> Markup:
    """Mark a script or style of this package as safe: it contains no value of a recording."""
    return Markup(text)  # noqa: S704


def _store(section: Section) -> Markup:
    """Return the data of a section as JSON; compressed if its scripts wait for it."""
    plain = encode_script_json(section.data)
    if section.id not in _COMPRESSED or len(plain) < _MIN_COMPRESSED:
        return plain
    packed = gzip.compress(plain.encode(), _LEVEL, mtime=0)
    return encode_script_json({"gzip": base64.b64encode(packed).decode()})


def encode_script_json(value: Any) -> Markup:  # noqa: ANN401  (what JSON can hold)
    """Return a value as JSON that is safe within a ``<script>`` element.

    It is ASCII, and nothing in it can end the element or begin a comment.

    Args:
        value: Any JSON value; no number in it is NaN or infinite.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def hashed(script: str) -> str:
    """Return the source expression by which a policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def build_policy(allowed: Iterable[str]) -> str:
    """Return a Content Security Policy that allows :func:`hashed` scripts, and no request.

    Source: https://www.w3.org/TR/CSP3/ ("default-src", "Matching elements to source lists").
    """
    scripts = " ".join(dict.fromkeys(allowed))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
