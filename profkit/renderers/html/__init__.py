"""The report as one self-contained HTML page.

The page is a single file: it needs no server, no network and no other file. Its Content Security
Policy, which the browser enforces, forbids every request and every script that is not part of it.

From top to bottom: the headline and the main figures; findings with evidence and source lines; the
ranks of a job; the timeline. Then, folded to a line with its main figure each: the step time
without some findings; the critical path; steps; flame graphs; memory; roofline; tables; skipped
checks, faults and environment of the recording; glossary.
"""

from collections.abc import Sequence

from profkit.model.difference import Difference
from profkit.model.report import Report
from profkit.present.flame_difference import FlameDifference
from profkit.present.renderer import RendererInfo
from profkit.renderers.html._options import Options

__all__ = ["INFO", "Options", "render", "together"]

INFO = RendererInfo(name="html", suffix=".html", media_type="text/html", is_for_people=True)


def render(report: Report, options: Options) -> bytes:
    """Return the report as one self-contained page in UTF-8."""
    from profkit.renderers.html._page import build_page  # noqa: PLC0415  (other formats load no templates)

    return build_page(report, options).encode()


def render_difference(
    difference: Difference, tables: bytes, graphs: Sequence[FlameDifference], base: str
) -> bytes:
    """Return a comparison as one page: its tables, and the flame graphs of its recordings."""
    from profkit.renderers.html._difference import build_difference_page  # noqa: PLC0415  (as above)

    return build_difference_page(difference, tables, graphs, base)


def together(products: Sequence[bytes]) -> bytes:
    """Return a page of several reports: a table that compares them, and the selected page."""
    from profkit.renderers.html._combined import build_combined_page  # noqa: PLC0415  (as above)

    return build_combined_page(products)
