"""Several reports on one page: side by side, and each one's own page to choose.

The own pages travel packed, without plotly's script, which is on the outer page once; the browser
puts each together when it is chosen, in a frame that can reach nothing else.
"""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from profkit.engine.wording import counted
from profkit.names import short_path
from profkit.renderers.html._page import CARD_ID, PLOTLY_ID, Head, assembled
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, table
from profkit.units import format_ns

_SCRIPTS: Final = (TABLE_SCRIPT, CHART_SCRIPT, "stacked.js", "together.js")
_PLOTLY: Final = re.compile(rf'(<script type="text/plain" id="{PLOTLY_ID}">)([^<]*)(</script>)')
_CARD: Final = re.compile(rf'<script type="application/json" id="data-{CARD_ID}">([^<]*)</script>')
_POLICY: Final = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')
_HASH: Final = re.compile(r"(?:'|&#39;)(sha256-[A-Za-z0-9+/=]+)(?:'|&#39;)")


@dataclass(frozen=True)
class Inner:
    """One report's page within the page of several.

    Attributes:
        name: What it is called there.
        card: The figures of the report, as :mod:`profkit.renderers.html._summary_card` has them.
        packed: The page without plotly's script, as gzip in base64.
        allowed: What its policy calls the scripts that it allows.
    """

    name: str
    card: dict[str, Any]
    packed: str
    allowed: tuple[str, ...]


def together(products: Sequence[bytes]) -> bytes:
    """One page of several.

    Args:
        products: Pages of one report each.
    """
    inner = [_inner(product.decode()) for product in products]
    names = _names([each.card for each in inner])
    inner = [Inner(name, e.card, e.packed, e.allowed) for name, e in zip(names, inner, strict=True)]
    rows = _table(inner)
    body = fill("together.html.j2", table=rows, inner=inner,
                has_chart=any(each.card["parts"] for each in inner))  # fmt: skip
    section = Section(
        id="reports",
        title="Side by side",
        body=body,
        scripts=_SCRIPTS,
        data={"tables": {rows.id: rows.data}, "parts": _drawn(inner)},
        needs_plotly=True,
    )
    chosen = Section("report", "Report", fill("chosen.html.j2", inner=inner))
    head = Head("Reports · profkit", _heading(inner), "", (), inner[0].card["version"])
    allowed = tuple(dict.fromkeys(name for each in inner for name in each.allowed))
    return assembled(head, (section, chosen), scripts_within=allowed).encode()


def _inner(page: str) -> Inner:
    found, policy = _CARD.search(page), _POLICY.search(page)
    card = json.loads(found[1]) if found else {}
    bare = _PLOTLY.sub(r"\1\3", page)
    packed = base64.b64encode(gzip.compress(bare.encode(), 6, mtime=0)).decode()
    allowed = _HASH.findall(policy[1]) if policy else []
    return Inner("", card, packed, tuple(f"'{each}'" for each in allowed))


def _names(cards: Sequence[dict[str, Any]]) -> list[str]:
    """Ranks where each report has its own, else paths without what all of them begin with."""
    ranks = [card["rank"] for card in cards]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    folder = cards[0]["path"].rpartition("/")[0]
    while folder and not all(card["path"].startswith(f"{folder}/") for card in cards):
        folder = folder.rpartition("/")[0]
    return [short_path(card["path"], folder) or f"report {n}" for n, card in enumerate(cards, 1)]


def _heading(inner: Sequence[Inner]) -> str:
    are_ranks = inner[0].name.startswith("rank ")
    how_many = counted(len(inner), "rank" if are_ranks else "report")
    known = [each for each in inner if each.card["wholeNs"] and each.card["nSteps"]]
    if len(known) < 2:  # noqa: PLR2004  (one is not compared)
        return f"{how_many}."
    slowest = max(known, key=lambda each: each.card["wholeNs"])
    quickest = min(known, key=lambda each: each.card["wholeNs"])
    return (
        f"{how_many}. A step takes {format_ns(quickest.card['wholeNs'])} ({quickest.name}) to "
        f"{format_ns(slowest.card['wholeNs'])} ({slowest.name})."
    )


def _table(inner: Sequence[Inner]) -> SortableTable:
    shares = (
        ("Device busy", "busyShare", "of the time that the devices were in use"),
        ("Compute", "computeShare", "a kernel ran that is no communication"),
        ("Communication", "communicationShare", "a communication kernel ran"),
        ("Both at once", "overlapShare", "compute and communication"),
    )
    columns = (
        SortableColumn("Report", "name"),
        SortableColumn("Steps", "count"),
        SortableColumn("A step", "ns", "or the whole recording, where it has no steps"),
        *(SortableColumn(title, "share", about) for title, _, about in shares),
        SortableColumn("Memory at the peak", "bytes"),
        SortableColumn("Findings", "count"),
        SortableColumn("Costliest", "text"),
    )
    rows = (
        (
            each.name, each.card["nSteps"], each.card["wholeNs"],
            *(each.card[key] for _, key, _ in shares),
            each.card["peakBytes"], each.card["nFindings"], each.card["worst"],
        )
        for each in inner
    )  # fmt: skip
    return table("side-by-side", "Reports", columns, rows)


def _drawn(inner: Sequence[Inner]) -> dict[str, Any]:
    """What ``stacked.js`` draws: a bar a report."""
    every = {part["kind"]: part for each in inner for part in each.card["parts"]}
    by_report = [{part["kind"]: part["ns"] for part in each.card["parts"]} for each in inner]
    return {
        "axis": "report",
        "names": [each.name for each in inner],
        "series": [
            {
                "label": part["label"],
                "color": part["color"],
                "isIdle": kind.startswith("idle-") or kind in {"data", "python"},
                "ns": [known.get(kind, 0) for known in by_report],
            }
            for kind, part in every.items()
        ],
    }
