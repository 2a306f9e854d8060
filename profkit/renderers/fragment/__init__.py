"""The report as a piece of HTML without scripts: what notebooks show, and other pages can embed.

It is small, since a notebook stores it in its file, and fetches nothing. Its style applies to
nothing around it. The whole page, with plots, is the format ``html``.
"""

import shlex
from functools import lru_cache
from typing import Final

from jinja2 import Environment

from profkit.dataclass import dataclass
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.document import (
    Block,
    Cell,
    Document,
    Name,
    SourceLine,
)
from profkit.present.markup import environment
from profkit.present.part_colors import SERIES
from profkit.present.renderer import ReadersOptions, RendererInfo
from profkit.present.report_document import build_report_document

__all__ = ["INFO", "Options", "render", "render_document"]

INFO = RendererInfo(
    name="fragment", suffix=".fragment.html", media_type="text/html", shows="recording"
)

_MAX_NAME_WIDTH: Final = 90
_TREND_WIDTH: Final = 24


@dataclass(frozen=True)
class Options(ReadersOptions):
    """How much is shown, and as what.

    Attributes:
        is_page: Whether to make a whole page instead of a ``<div>``.
    """

    is_page: bool = False


def render(report: Report, options: Options) -> bytes:
    """Return the report as a ``<div>`` in UTF-8."""
    path = report.source.path
    # A path with characters that cannot be typed has no command.
    command = f"profkit view {shlex.quote(path)}" if path and visible(path) == path else ""
    return _fill(build_report_document(report, options), options, command)


def render_document(document: Document, options: Options) -> bytes:
    """Return a document as a ``<div>``, or as a page that runs and fetches nothing, in UTF-8."""
    return _fill(document, options)


def _fill(document: Document, options: Options, command: str = "") -> bytes:
    # A page is the same fragment within a body, with the policy that a file on its own needs.
    template = "page.html.j2" if options.is_page else "document.html.j2"
    filled = _environment().get_template(template).render(document=document, command=command)
    return filled.encode("utf-8", "backslashreplace")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    templates = environment("profkit.renderers.fragment")
    templates.globals["series"] = SERIES
    templates.filters |= {"shown": _shown, "is_code": _is_code, "kind": _kind}
    return templates


def _shown(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, SourceLine):
        return cell.short
    return cell.fitted(_MAX_NAME_WIDTH) if isinstance(cell, Name) else cell.trend(_TREND_WIDTH)


def _is_code(cell: Cell) -> bool:
    return isinstance(cell, Name | SourceLine)


def _kind(block: Block) -> str:
    return type(block).__name__
