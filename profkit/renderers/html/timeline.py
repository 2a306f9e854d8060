"""The timeline: streams, threads, steps, findings and idle time, to zoom into and to search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from profkit.index.level_of_detail import coarser
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.model.timeline import Level, SliceKind, Timeline, TimelineSite
from profkit.names import middle_cut, short_kernel, short_path, visible
from profkit.present.headline import part_label
from profkit.present.timeline import timeline
from profkit.renderers.html._colors import color_of
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import packed
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, table

SCRIPTS: Final = (
    "canvas.js",
    "columns.js",
    "slices.js",
    "lanes.js",
    "drags.js",
    "slice_facts.js",
    "timeline.js",
)
MAX_LEVEL_CHARACTERS: Final = 8_500_000
"""With so much text of slices a page of a million events has less than 12 MB, whatever they are."""
MAX_PLAIN_SLICES: Final = 20_000
"""The coarsest level is not zipped where it is no larger: then any browser draws at least that."""
MAX_STEPS: Final = 1_000
"""The list of steps to choose from is no longer; the table of steps has them all."""
MAX_NAME: Final = 240
_SAMPLE: Final = 1 << 16
_TRIES: Final = 64
_WORTH_A_TRY: Final = 1.1
"""What a sample says is too long by no more than this share may fit."""


@dataclass(frozen=True)
class _Look:
    """How slices of one kind are drawn.

    Attributes:
        label: What they are, in a few words.
        color: The custom property with their colour.
        pattern: ``plain``; ``stripes`` where something waits; ``dots`` where bytes move.
    """

    label: str
    color: str
    pattern: str = "plain"


_LOOKS: Final[dict[SliceKind, _Look]] = {
    "step": _Look("steps", "--series-8"),
    "finding": _Look("findings", "--series-4"),
    "compute": _Look("kernels", color_of("compute")),
    "communication": _Look("communication", color_of("communication"), "dots"),
    "copy": _Look("copies and fills", color_of("copy"), "dots"),
    "op": _Look("operators", "--series-1"),
    "annotation": _Look("regions and annotations", "--series-5"),
    "python": _Look("Python calls", "--series-8"),
    "call": _Look("runtime calls", "--series-6"),
    "sync": _Look("syncs: the host waits for a device", "--series-4", "stripes"),
    "data": _Look("waits for data", color_of("data"), "stripes"),
    "allocator": _Look("asks the driver for memory", color_of("idle-allocator"), "stripes"),
    "overhead": _Look("profiler overhead", "--series-8", "stripes"),
    "other": _Look("other events", "--series-8"),
}


def section(report: Report, options: Options) -> Section | None:
    """The timeline, or None without a recording that has events.

    Args:
        options: The recording, and how paths are shown.
    """
    if options.recording is None:
        return None
    drawn = timeline(options.recording.context, report)
    if drawn is None:
        return None
    levels = levels_within(drawn, MAX_LEVEL_CHARACTERS)
    lanes = _table(drawn)
    return Section(
        id="timeline",
        title="Timeline",
        body=_body(drawn, levels, lanes),
        scripts=(TABLE_SCRIPT, *SCRIPTS),
        data={
            "tables": {lanes.id: lanes.data},
            "timeline": _data(drawn, levels, options.base),
        },
    )


def look_of(kind: SliceKind) -> _Look:
    """How slices of a kind are drawn."""
    if kind in _LOOKS:
        return _LOOKS[kind]
    return _Look(part_label(kind), color_of(kind), "stripes")


def kinds_of(drawn: Timeline) -> list[SliceKind]:
    """The kinds that a timeline has, in the order of the legend."""
    there = {site.kind for site in drawn.sites}
    return [*(kind for kind in _LOOKS if kind in there), *sorted(there - _LOOKS.keys())]


def _body(drawn: Timeline, levels: Sequence["_Packed"], lanes: SortableTable) -> Markup:
    return fill(
        "timeline.html.j2",
        samples=[look_of(kind) for kind in kinds_of(drawn)],
        steps=[step[0] for step in drawn.steps[:MAX_STEPS]],
        n_steps=len(drawn.steps),
        n_events=sum(lane.n for lane in drawn.lanes),
        n_slices=len(levels[0].level.slices),
        resolution_ns=levels[0].level.resolution_ns,
        table=lanes,
    )


def _data(drawn: Timeline, levels: Sequence["_Packed"], base: str) -> dict[str, Any]:
    """What ``timeline.js`` draws."""
    kinds = kinds_of(drawn)
    looks = [look_of(kind) for kind in kinds]
    n_rows = sum(lane.n_rows for lane in drawn.lanes)
    return {
        "startNs": drawn.start_ns,
        "endNs": drawn.end_ns,
        "lanes": [
            {
                "kind": lane.kind, "label": _cut(lane.label), "firstRow": lane.first_row,
                "nRows": lane.n_rows, "n": lane.n, "busyNs": lane.busy_ns,
            }
            for lane in drawn.lanes
        ],
        "looks": [
            {"label": look.label, "color": look.color, "pattern": look.pattern} for look in looks
        ],
        "sites": _sites(drawn.sites, kinds, base),
        "levels": [
            {
                "resolutionNs": each.level.resolution_ns,
                "rows": np.bincount(each.level.slices.row, minlength=n_rows).tolist(),
                "packed": each.packed,
            }
            for each in levels
        ],
        "steps": [
            {"name": _cut(name), "startNs": start, "endNs": end}
            for name, start, end in drawn.steps[:MAX_STEPS]
        ],
    }  # fmt: skip


def _sites(
    sites: Sequence[TimelineSite], kinds: Sequence[SliceKind], base: str
) -> dict[str, list[Any]]:
    """Sites as columns; texts are places in ``texts``, 0 is none."""
    texts: dict[str, int] = {"": 0}

    def number(text: str) -> int:
        return texts.setdefault(_cut(text), len(texts))

    found = {
        "name": [number(site.name) for site in sites],
        "short": [
            number(short_kernel(site.name) if site.kind == "compute" else site.name)
            for site in sites
        ],
        "place": [number(_place(site.frame, base)) for site in sites],
        "op": [number(site.op or "") for site in sites],
        "look": [kinds.index(site.kind) for site in sites],
        "n": [site.n for site in sites],
        "totalNs": [site.total_ns for site in sites],
    }
    return {**found, "texts": list(texts)}


def _place(frame: Frame | None, base: str) -> str:
    """``net.py:12 in forward``, or nothing."""
    if frame is None:
        return ""
    where = f"{short_path(frame.file, base)}:{frame.line}"
    if not frame.function:
        return where
    return f"{where} in {frame.function}"


def _cut(text: str) -> str:
    return middle_cut(visible(text), MAX_NAME)


@dataclass(frozen=True)
class _Packed:
    """A level, and the same as text."""

    level: Level
    packed: dict[str, Any]

    @property
    def n_characters(self) -> int:
        return len(self.packed["text"])


def levels_within(drawn: Timeline, max_characters: int) -> list[_Packed]:
    """The levels as text, the finest first, none of them so fine that the page gets too large.

    Args:
        drawn: The timeline.
        max_characters: Length of all texts together.
    """
    kept: list[_Packed] = []
    left = max_characters
    for level in reversed(drawn.levels):
        found = _fitting(drawn, level, left, kept[0].level.resolution_ns if kept else None)
        if found is None:
            break
        kept.insert(0, found)
        left -= found.n_characters
    return kept


def _fitting(drawn: Timeline, level: Level, left: int, coarser_ns: int | None) -> _Packed | None:
    """A level, or as much of it as fits; None if that is no more than the next coarser has."""
    # Of a level that is far too long the try is not with each nanosecond more.
    least_ns = (coarser_ns or drawn.end_ns - drawn.start_ns) // _TRIES
    resolution_ns = max(1, level.resolution_ns, least_ns)
    while True:
        plain = coarser_ns is None and len(level.slices) <= MAX_PLAIN_SLICES
        if _characters(drawn, level) <= _WORTH_A_TRY * left:
            found = _Packed(level, _packed(drawn, level, plain=plain))
            if found.n_characters <= left:
                return found
        resolution_ns *= 2
        if coarser_ns is not None and resolution_ns >= coarser_ns:
            return None
        level = Level(resolution_ns, coarser(level.slices, resolution_ns))


def _characters(drawn: Timeline, level: Level) -> int:
    """About how long the text of a level would be, from a sample of it."""
    n = len(level.slices)
    if n <= _SAMPLE:
        return 0
    first = (n - _SAMPLE) // 2
    sample = Level(level.resolution_ns, level.slices.of(np.arange(first, first + _SAMPLE)))
    return len(_packed(drawn, sample, plain=False)["text"]) * n // _SAMPLE


def _packed(drawn: Timeline, level: Level, *, plain: bool) -> dict[str, Any]:
    """The slices of a level as columns, each row from the timeline's start.

    These are: the time since the end before; the length; the site; how many events beyond one; and
    of those with several the part of the length that is not busy, and the longest event.
    """
    slices = level.slices
    before = np.empty(len(slices), dtype=np.int64)
    before[1:] = slices.end_ns[:-1]
    before[np.flatnonzero(np.diff(slices.row, prepend=-1))] = drawn.start_ns
    lengths = slices.end_ns - slices.start_ns
    several = slices.n > 1
    columns = (
        slices.start_ns - before,
        lengths,
        slices.site,
        slices.n - 1,
        (lengths - slices.busy_ns)[several],
        slices.longest_ns[several],
    )
    return packed(columns, plain=plain)


def _table(drawn: Timeline) -> SortableTable:
    """The lanes as a table, for those who do not see the picture."""
    columns = (
        SortableColumn("Lane", "name"),
        SortableColumn("Events", "count"),
        SortableColumn("Busy", "ns", "time that its events cover"),
        SortableColumn("Share", "share", "of the time from the first event to the last"),
        SortableColumn("Rows", "count", "how deep its calls nest, or how many run at once"),
    )
    span_ns = max(1, drawn.end_ns - drawn.start_ns)
    rows = (
        (lane.label, lane.n, lane.busy_ns, lane.busy_ns / span_ns, lane.n_rows)
        for lane in drawn.lanes
    )
    return table("lanes-table", "Every lane", columns, rows)
