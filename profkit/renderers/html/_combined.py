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
from profkit.present.labels import part_label
from profkit.present.main_figures import BUSY_ABOUT
from profkit.present.tables.definition import Column, ColumnKind, Table
from profkit.renderers.html._page import FIGURES_ID, Head, assemble_page
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, table_data
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
    """Return one page of several pages of one report each, in UTF-8."""
    pages = [product.decode() for product in products]
    figures = [_read_figures(page) for page in pages]
    names = _choose_names(figures)
    inner = [_pack_page(*report) for report in zip(names, figures, pages, strict=True)]

    rows = _build_table(inner)
    parts = [page.figures["partsNs"] for page in inner]
    kinds = list(dict.fromkeys(kind for parts_ns in parts for kind in parts_ns))
    body = fill("together.html.j2", table=rows, inner=inner, has_chart=bool(kinds))
    chart = {"axis": "report", "names": names, "series": stacked_series(kinds, parts)}
    section = Section(
        id="reports",
        title="Side by side",
        body=body,
        scripts=_SCRIPTS,
        data={**table_data(rows), "parts": chart},
    )

    # A frame inherits the policy of its page, which has to allow the scripts of every report.
    selected = Section("report", "Report", fill("selected.html.j2", inner=inner))
    head = Head("Reports · profkit", _heading(inner), "", (), inner[0].figures["version"])
    allowed = tuple(dict.fromkeys(script for page in inner for script in page.allowed))
    return assemble_page(head, (section, selected), inner_allowed=allowed).encode()


def _read_figures(page: str) -> dict[str, Any]:
    match = _FIGURES.search(page)
    return json.loads(match[1]) if match else {}


def _pack_page(name: str, figures: dict[str, Any], page: str) -> InnerPage:
    policy = _POLICY.search(page)
    allowed = _HASH.findall(policy[1]) if policy else []

    # Without a time, the same report gives the same bytes.
    content = gzip.compress(page.encode(), 6, mtime=0)
    packed = base64.b64encode(content).decode()
    return InnerPage(name, figures, packed, tuple(f"'{script}'" for script in allowed))


def _choose_names(reports: Sequence[dict[str, Any]]) -> list[str]:
    """Return ranks if they are unique, else paths without the folder that all of them share."""
    ranks = [figures["rank"] for figures in reports]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]

    paths = [figures["path"] for figures in reports]
    folder = paths[0].rpartition("/")[0]
    while folder and not all(path.startswith(f"{folder}/") for path in paths):
        folder = folder.rpartition("/")[0]
    names = [short_path(path, folder) or f"report {n}" for n, path in enumerate(paths, 1)]

    # The time in the name of a trace is noise, unless it alone tells two traces apart.
    short = [_SUFFIX.sub("", name) for name in names]
    return short if len(set(short)) == len(short) else names


def _heading(inner: Sequence[InnerPage]) -> str:
    of_ranks = inner[0].name.startswith("rank ")
    n_reports = counted(len(inner), "rank" if of_ranks else "report")
    with_steps = [page for page in inner if page.figures["wholeNs"] and page.figures["nSteps"]]
    if len(with_steps) < 2:  # noqa: PLR2004  (nothing to compare)
        return f"{n_reports}."

    by_time = sorted(with_steps, key=lambda page: page.figures["wholeNs"])
    fastest, slowest = (
        f"{format_ns(page.figures['wholeNs'])} ({page.name})" for page in (by_time[0], by_time[-1])
    )
    return f"{n_reports}. Step time is {fastest} to {slowest}."


def _build_table(inner: Sequence[InnerPage]) -> SortableTable:
    def column(title: str, kind: ColumnKind, key: str, about: str = "") -> Column:
        return Column(kind, "", title, about, value=lambda page: page.figures[key])

    def part(kind: str) -> Column:
        return Column("share", "", part_label(kind), value=lambda page: _part_share(page, kind))

    whole = "the mean; the whole recording where it has no steps"
    columns = (
        Column("name", "name", "report"),
        column("steps", "count", "nSteps"),
        column("step time", "ns", "wholeNs", whole),
        column("device busy", "share", "busyShare", BUSY_ABOUT),
        part("compute"),
        part("communication"),
        column("peak memory", "bytes", "peakBytes"),
        column("findings", "count", "nFindings"),
        column("highest cost", "text", "firstFinding", "the first finding of the report"),
    )
    return build_table(Table("side-by-side", "Reports", columns, tuple(inner)))


def _part_share(page: InnerPage, kind: str) -> float | None:
    ns = page.figures["partsNs"].get(kind)
    return None if ns is None else ns / page.figures["wholeNs"]
