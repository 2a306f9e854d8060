"""What changed between two recordings, as a piece of HTML and as a page."""

from collections.abc import Iterator
from typing import Final

from profkit.comparison.messages import (
    TITLES,
    amount,
    headline,
    label,
    share_of,
    signed,
    subject_of,
    where_of,
)
from profkit.model.difference import Difference
from profkit.names import short_path
from profkit.renderers.fragment.templating import Table, fill
from profkit.units import format_count

_UNKNOWN: Final = "?"


def fragment(
    difference: Difference, *, top: int = 5, verbose: bool = False, base: str = ""
) -> bytes:
    """A difference as a ``<div>`` in UTF-8.

    Args:
        top: How many changes of each kind to show.
        verbose: Whether to show all of them.
        base: An absolute folder; paths inside are shown relative to it.
    """
    return fill(
        "difference.html.j2",
        headline=headline(difference),
        figures=_figures(difference),
        tables=list(_changes(difference, None if verbose else top, base)),
        not_compared=difference.not_compared,
        notes=difference.notes,
        version=difference.profkit,
        before=short_path(difference.before.path, base) or "a report",
        after=short_path(difference.after.path, base) or "a report",
    )


def page(difference: Difference, *, top: int = 5, verbose: bool = False, base: str = "") -> bytes:
    """A difference as a page in UTF-8: one file that runs nothing and asks for nothing.

    Args:
        top: How many changes of each kind to show.
        verbose: Whether to show all of them.
        base: An absolute folder; paths inside are shown relative to it.
    """
    body = fragment(difference, top=top, verbose=verbose, base=base)
    return _PAGE_HEAD + body + b"</main></body></html>\n"


_PAGE_HEAD: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>profkit diff</title>
<style>:root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }</style>
</head><body><main>
"""


def _figures(difference: Difference) -> Table:
    rows = tuple(
        (
            label(each),
            amount(each.before, each.unit) or _UNKNOWN,
            amount(each.after, each.unit) or _UNKNOWN,
            signed(each),
            share_of(each),
        )
        for each in difference.figures
    )
    return Table(("figure", "before", "after", "change", ""), rows, n_left=0)


def _changes(
    difference: Difference, most: int | None, base: str
) -> Iterator[tuple[str, Table, int]]:
    """For each kind of change its title, its table, and how many more there are."""
    for kind, title in TITLES:
        every = difference.of_kind(kind)
        rows = tuple(
            (subject_of(each), signed(each), each.status, where_of(each, base))
            for each in every[:most]
        )
        if rows:
            heading = f"{title}: {format_count(len(every))} changed"
            titles = ("what", "change", "", "where")
            yield heading, Table(titles, rows, n_left=2), len(every) - len(rows)
