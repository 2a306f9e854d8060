"""The report as one HTML page, for a browser: to send to a colleague, and to look closer.

The page is a single file that needs nothing else: no server, no network, no other file. Its
policy, which the browser enforces, forbids every request and every script that is not in it.

From top to bottom: the verdict and what could be saved; findings with their evidence and lines;
the steps; the timeline; flame graphs; memory; tables that sort and search; what was not checked,
the recording's health, and where it was made.
"""

from collections.abc import Sequence

from profkit.model.report import Report
from profkit.present.renderer import RendererInfo
from profkit.renderers.html._options import Options

__all__ = ["INFO", "Options", "render", "together"]

INFO = RendererInfo(name="html", suffix=".html", media_type="text/html")


def render(report: Report, options: Options) -> bytes:
    """The report as one self-contained page in UTF-8.

    Args:
        options: What it was made from, and how names are shown.
    """
    from profkit.renderers.html._page import page  # noqa: PLC0415  (other formats load no templates)

    return page(report, options).encode()


def together(products: Sequence[bytes]) -> bytes:
    """One page of several: the reports side by side, and each one's own page to choose.

    Args:
        products: What :func:`render` made of each report.
    """
    from profkit.renderers.html._combined import together as joined  # noqa: PLC0415  (as above)

    return joined(products)
