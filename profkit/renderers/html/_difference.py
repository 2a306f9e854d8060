"""The page of a comparison: its tables, and the flame graphs of both recordings."""

from collections.abc import Sequence

from markupsafe import Markup

from profkit.comparison.messages import summarize_difference
from profkit.model.difference import Difference
from profkit.names import short_path, visible
from profkit.present.flame_difference import FlameDifference
from profkit.renderers.html import flames
from profkit.renderers.html._page import Head, assemble_page
from profkit.renderers.html._section import Section, fill


def build_difference_page(
    difference: Difference, tables: bytes, graphs: Sequence[FlameDifference], base: str
) -> bytes:
    """Return the page of a comparison in UTF-8.

    Args:
        tables: The comparison as HTML without scripts.
        graphs: At least one.
    """
    # The format ``fragment`` has escaped its values.
    escaped = Markup(tables.decode())  # noqa: S704
    body = fill("tables_of_difference.html.j2", tables=escaped)
    sections = (
        Section("comparison", "Comparison", body),
        flames.build_difference_section(graphs, base),
    )
    sides = (difference.before, difference.after)
    paths = (visible(short_path(side.path, base)) or "a report" for side in sides)
    head = Head(
        "profkit diff", summarize_difference(difference), " → ".join(paths), (), difference.profkit
    )
    return assemble_page(head, sections).encode("utf-8", "backslashreplace")
