"""Several reports on one page: a table that compares them, and the page of the selected one.

The pages of the single reports are embedded compressed. The browser unpacks a page when it is
selected, in a sandboxed frame.
"""

import base64
import gzip
import json
from collections.abc import Sequence
from typing import Any, Final

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.names import short_path
from profkit.patterns import regex
from profkit.present.headline import part_label
from profkit.present.main_figures import BUSY_ABOUT
from profkit.renderers.html._page import FIGURES_ID, Head, assemble_page
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import (
    TABLE_SCRIPT,
    CellKind,
    SortableColumn,
    SortableTable,
    build_table,
)
from profkit.renderers.html.steps import stacked_series
from profkit.units import format_ns

_SCRIPTS: Final = (TABLE_SCRIPT, CHART_SCRIPT, "stacked.js", "together.js")
_FIGURES: Final = regex(rf'<script type="application/json" id="data-{FIGURES_ID}">([^<]*)</script>')
_POLICY: Final = regex(r'http-equiv="Content-Security-Policy" content="([^"]*)"')
_SUFFIX: Final = regex(r"(\.\d{10,})?\.pt\.trace\.json(\.gz)?$")
"""Of a trace's file: the time of its recording, and what it is."""
_HASH: Final = regex(r"(?:'|&#39;)(sha256-[A-Za-z0-9+/=]+)(?:'|&#39;)")


@dataclass(frozen=True)
class InnerPage:
    """The page of one report within the page of several.

    Attributes:
        figures: From :func:`~profkit.renderers.html.overview.collect_figures`.
        packed: The page as gzip in base64.
        allowed: The script hashes that its policy allows.
    """

    name: str
    figures: dict[str, Any]
    packed: str
    allowed: tuple[str, ...]


def build_combined_page(products: Sequence[bytes]) -> bytes:
    """One page of several pages of one report each."""
    pages = [product.decode() for product in products]
    figures = [json.loads(found[1]) if (found := _FIGURES.search(each)) else {} for each in pages]
    inner = [
        _inner(name, *each) for name, *each in zip(_names(figures), figures, pages, strict=True)
    ]
    rows = _table(inner)
    parts = [each.figures["partsNs"] for each in inner]
    kinds = list(dict.fromkeys(kind for each in parts for kind in each))
    body = fill("together.html.j2", table=rows, inner=inner, has_chart=bool(kinds))
    names = [each.name for each in inner]
    chart = {"axis": "report", "names": names, "series": stacked_series(kinds, parts)}
    section = Section(
        id="reports",
        title="Side by side",
        body=body,
        scripts=_SCRIPTS,
        data={"tables": {rows.id: rows.data}, "parts": chart},
    )
    selected = Section("report", "Report", fill("selected.html.j2", inner=inner))
    head = Head("Reports · profkit", _heading(inner), "", (), inner[0].figures["version"])
    allowed = tuple(dict.fromkeys(name for each in inner for name in each.allowed))
    return assemble_page(head, (section, selected), inner_allowed=allowed).encode()


def _inner(name: str, figures: dict[str, Any], page: str) -> InnerPage:
    policy = _POLICY.search(page)
    content = gzip.compress(page.encode(), 6, mtime=0)
    allowed = _HASH.findall(policy[1]) if policy else []
    packed = base64.b64encode(content).decode()
    return InnerPage(name, figures, packed, tuple(f"'{each}'" for each in allowed))


def _names(every: Sequence[dict[str, Any]]) -> list[str]:
    """Ranks where they are unique, else paths without the folder that all of them share."""
    ranks = [figures["rank"] for figures in every]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    folder = every[0]["path"].rpartition("/")[0]
    while folder and not all(figures["path"].startswith(f"{folder}/") for figures in every):
        folder = folder.rpartition("/")[0]
    names = [short_path(each["path"], folder) or f"report {n}" for n, each in enumerate(every, 1)]
    short = [_SUFFIX.sub("", name) for name in names]
    return short if len(set(short)) == len(short) else names


def _heading(inner: Sequence[InnerPage]) -> str:
    of_ranks = inner[0].name.startswith("rank ")
    n_reports = counted(len(inner), "rank" if of_ranks else "report")
    known = [each for each in inner if each.figures["wholeNs"] and each.figures["nSteps"]]
    if len(known) < 2:  # noqa: PLR2004  (nothing to compare)
        return f"{n_reports}."
    by_step = sorted(known, key=lambda each: each.figures["wholeNs"])
    fastest, slowest = (
        f"{format_ns(each.figures['wholeNs'])} ({each.name})" for each in (by_step[0], by_step[-1])
    )
    return f"{n_reports}. Step time is {fastest} to {slowest}."


def _table(inner: Sequence[InnerPage]) -> SortableTable:
    def column(title: str, kind: CellKind, key: str, about: str = "") -> SortableColumn:
        return SortableColumn(title, kind, lambda each: each.figures[key], about)

    def part(kind: str) -> SortableColumn:
        label = part_label(kind)
        title = f"{label[0].upper()}{label[1:]}"
        return SortableColumn(title, "share", lambda each: _part_share(each.figures, kind))

    whole = "the mean; the whole recording where it has no steps"
    columns = (
        SortableColumn("Report", "name", "name"),
        column("Steps", "count", "nSteps"),
        column("Step time", "ns", "wholeNs", whole),
        column("Device busy", "share", "busyShare", BUSY_ABOUT),
        part("compute"),
        part("communication"),
        column("Peak memory", "bytes", "peakBytes"),
        column("Findings", "count", "nFindings"),
        column("Highest cost", "text", "firstFinding", "the first finding of the report"),
    )
    return build_table("side-by-side", "Reports", columns, inner)


def _part_share(figures: dict[str, Any], kind: str) -> float | None:
    ns = figures["partsNs"].get(kind)
    return None if ns is None else ns / figures["wholeNs"]
