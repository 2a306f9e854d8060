"""The page around the sections: its policy, its style, its scripts, its data."""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from profkit.engine.verdict import origin, verdict
from profkit.model.report import Report
from profkit.names import short_path
from profkit.render.html import findings, memory, overview, recording, steps, tables
from profkit.render.html._options import Options
from profkit.render.html._section import Section, fill

SECTIONS: Final[tuple[Callable[[Report, Options], Section | None], ...]] = (
    overview.section,
    findings.section,
    steps.section,
    memory.section,
    tables.section,
    recording.section,
)
"""What is on the page, from top to bottom."""

_PACKAGE: Final = "profkit.render.html"
_BASE_SCRIPTS: Final = ("base.js", "page.js")
_PLOTLY_ID: Final = "plotly-packed"


def page(report: Report, options: Options) -> str:
    """The whole page.

    Args:
        report: The report.
        options: What the reader chose.
    """
    sections = [found for each in SECTIONS if (found := each(report, options)) is not None]
    names = (*_BASE_SCRIPTS, *(script for each in sections for script in each.scripts))
    scripts = [resource(name) for name in dict.fromkeys(names)]
    allowed = list(scripts)
    with_plotly = any(each.needs_plotly for each in sections)
    if with_plotly:
        allowed.append(get_plotlyjs())
    return str(
        fill(
            "page.html.j2",
            policy=policy(allowed),
            title=_title(report),
            source=short_path(report.source.path, options.base),
            origin=origin(report),
            version=report.profkit,
            verdict=verdict(report),
            style=_inline(resource("style.css")),
            sections=sections,
            data={each.id: script_json(each.data) for each in sections if each.data},
            scripts=[_inline(script) for script in scripts],
            plotly=Markup(packed_plotly()) if with_plotly else None,  # noqa: S704  (base64)
            plotly_id=_PLOTLY_ID,
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


def policy(scripts: Iterable[str]) -> str:
    """A content security policy that allows these scripts and no request at all.

    Args:
        scripts: The texts of all scripts of the page.

    Source: https://www.w3.org/TR/CSP3/ ("default-src", "Matching elements to source lists").
    """
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{each.decode()}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def packed_plotly() -> str:
    """Plotly's script out of the installed wheel, as gzip in base64: 2 MB instead of 5.

    ``base.js`` unpacks it when the first chart is about to be seen, so that the page opens
    without waiting for it.
    """
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
