"""The timeline: streams, threads, steps, findings and idle time, with zoom and search."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.level_of_detail import coarser
from profkit.model.events import MISSING, NO_ROW, Int64s
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.model.timeline import EVENT_LANES, Level, SliceKind, Slices, Timeline, TimelineSite
from profkit.names import short_kernel
from profkit.present.critical_path import path_label
from profkit.present.event_arguments import find_event_arguments
from profkit.present.labels import part_label, source_line
from profkit.present.part_colors import color_of
from profkit.present.rank_timeline import STATE_LABELS
from profkit.present.tables.definition import Column, Table
from profkit.present.timeline import build_timeline
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import pack_columns
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, cell, table_data

SCRIPTS: Final = (
    "canvas.js", "keys.js", "slices.js", "slice_colors.js", "lanes.js", "drags.js",
    "slice_arguments.js", "slice_facts.js", "time_range.js", "held_keys.js", "slice_selection.js",
    "slice_search.js", "timeline.js",
)  # fmt: skip
MAX_LEVEL_CHARACTERS: Final = 6_150_000
"""Limit of all slices as text: with the arguments it keeps the page of a million events below
8 MB."""
MAX_ARGUMENT_CHARACTERS: Final = 700_000
"""Limit of what slices have besides their times, as text."""
MAX_PLAIN_SLICES: Final = 20_000
"""Up to so many slices the coarsest level is not compressed, so that any browser can draw it."""
MAX_STEPS: Final = 1_000
"""Steps in the list to choose from; the table of steps has all."""
_WITH_EVENTS: Final = {*EVENT_LANES, "rank"}
"""Kinds of lanes whose slices are events of a recording."""
_MAX_NAME: Final = 240
_MAX_ID: Final = 1 << 50
"""Zigzag differences of larger numbers are not exact as a browser's floats."""
_SAMPLE: Final = 1 << 16
_PART: Final = 1 << 12
_TRIES: Final = 1 << 11
_LONGEST_NS: Final = 1 << 62
_SAMPLE_TOLERANCE: Final = 1.1
"""A level that is estimated to be too long by no more than this factor is measured exactly."""


@dataclass(frozen=True)
class SliceStyle:
    """How slices of one kind are drawn: their label in the legend, and the style of the boxes.

    Attributes:
        color: The CSS custom property of their colour.
        pattern: ``plain``; ``stripes`` where something waits; ``dots`` where bytes move.
    """

    label: str
    color: str
    pattern: str = "plain"


_STYLES: Final[dict[SliceKind, SliceStyle]] = {
    "step": SliceStyle("steps", "--series-8"),
    "finding": SliceStyle("findings", "--series-4"),
    "compute": SliceStyle("kernels", color_of("compute")),
    "communication": SliceStyle(part_label("communication"), color_of("communication"), "dots"),
    "copy": SliceStyle("copies and fills", color_of("copy"), "dots"),
    "op": SliceStyle("operators", "--series-1"),
    "annotation": SliceStyle("regions and annotations", "--series-5"),
    "own": SliceStyle("your code", "--code-own"),
    "module": SliceStyle("modules", "--code-module"),
    "torch": SliceStyle("torch's Python code", "--code-torch"),
    "library": SliceStyle("library code", "--code-library"),
    "python": SliceStyle("outside operators", "--series-8"),
    "call": SliceStyle("runtime calls", "--series-6"),
    "sync": SliceStyle("syncs", "--series-4", "stripes"),
    "data": SliceStyle(part_label("data"), color_of("data"), "stripes"),
    "allocator": SliceStyle("driver allocations", color_of("idle-allocator"), "stripes"),
    "launch-latency": SliceStyle(path_label("launch-latency"), color_of("idle-launch"), "stripes"),
    "gap": SliceStyle(path_label("gap"), color_of("idle-device"), "stripes"),
    "unrecorded": SliceStyle(path_label("unrecorded"), "--series-7", "dots"),
    "overhead": SliceStyle("profiler overhead", "--series-8", "stripes"),
    "other": SliceStyle("other events", "--series-8"),
    "operators": SliceStyle(part_label("operators"), color_of("operators")),
    "backward": SliceStyle(part_label("backward"), color_of("backward")),
    "optimizer": SliceStyle(part_label("optimizer"), color_of("optimizer")),
    "outside": SliceStyle(part_label("python"), color_of("python"), "stripes"),
    "waiting": SliceStyle(STATE_LABELS["waiting"], "--series-7", "stripes"),
    "transfer": SliceStyle(STATE_LABELS["transfer"], color_of("communication"), "dots"),
    "late": SliceStyle(STATE_LABELS["late"], "--series-4"),
    "unmatched": SliceStyle(f"collective {STATE_LABELS['unmatched']}", "--series-8", "dots"),
}


_WITH_KERNELS: Final = frozenset({"compute", "communication"})
"""Kinds of slices that are kernels, or calls of collectives."""


def build_section(report: Report, options: Options) -> Section | None:
    """Return the timeline, or None without a recording that has events."""
    if options.recording is None:
        return None
    shown = build_timeline(options.recording.context, report)
    if shown is None:
        return None

    levels = fit_levels(shown, MAX_LEVEL_CHARACTERS)
    arguments = pack_arguments(options.recording.context, levels[0].level.slices)
    lanes = _build_lane_table(shown)

    return Section(
        id="timeline",
        title="Timeline",
        body=_fill_body(shown, levels, lanes),
        scripts=(TABLE_SCRIPT, *SCRIPTS),
        data={
            **table_data(lanes),
            "timeline": build_drawing(shown, levels, options.base) | {"arguments": arguments},
        },
    )


def style_of(kind: SliceKind) -> SliceStyle:
    """Return how slices of a kind are drawn."""
    if kind in _STYLES:
        return _STYLES[kind]
    return SliceStyle(part_label(kind), color_of(kind), "stripes")


def kinds_of(shown: Timeline) -> list[SliceKind]:
    """Return the kinds of slices that a timeline has, in the order of the legend."""
    kinds = {site.kind for site in shown.sites}
    return [*(kind for kind in _STYLES if kind in kinds), *sorted(kinds - _STYLES.keys())]


def _fill_body(shown: Timeline, levels: Sequence["PackedLevel"], lanes: SortableTable) -> Markup:
    return fill(
        "timeline.html.j2",
        **describe_view(shown, "timeline", "Timeline", "kernel, operator, line"),
        n_events=sum(lane.n for lane in shown.lanes if lane.kind != "path"),
        resolution_ns=levels[0].level.resolution_ns,
        path_ns=levels[0].path_ns,
        table=lanes,
    )


def describe_view(shown: Timeline, section: str, label: str, examples: str) -> dict[str, Any]:
    """Return the values for the template ``timeline_view.html.j2``.

    Args:
        section: The id of the section that has the timeline.
        label: Its name for screen readers.
        examples: What the search can find.
    """
    return {
        "id": section,
        "label": label,
        "examples": examples,
        "colors": [("kind", "by category"), *_find_color_modes(shown)],
        "steps": [step[0] for step in shown.steps[:MAX_STEPS]],
        "n_steps": len(shown.steps),
    }


def _find_color_modes(shown: Timeline) -> Iterator[tuple[str, str]]:
    """Return what the colours of slices can show besides their kind, with labels."""
    if any(site.module for site in shown.sites):
        yield "module", "by module"
    # Slices of ranks are named by their kind or collective: colours by name would add little.
    if not any(lane.kind == "rank" for lane in shown.lanes):
        yield "name", "by name"


def build_drawing(shown: Timeline, levels: Sequence["PackedLevel"], base: str) -> dict[str, Any]:
    """Return what ``timeline.js`` draws: ``timeline`` in the data of the section."""
    kinds = kinds_of(shown)
    n_rows = sum(lane.n_rows for lane in shown.lanes)

    return {
        "startNs": shown.start_ns,
        "endNs": shown.end_ns,
        "lanes": [
            {
                "kind": lane.kind,
                "hasEvents": lane.kind in _WITH_EVENTS,
                "label": cell(lane.label, _MAX_NAME),
                "firstRow": lane.first_row,
                "nRows": lane.n_rows,
                "n": lane.n,
                "busyNs": lane.busy_ns,
            }
            for lane in shown.lanes
        ],
        "styles": [asdict(style_of(kind)) for kind in kinds],
        "sites": _list_sites(shown.sites, kinds, base),
        "levels": [
            {
                "resolutionNs": packed.level.resolution_ns,
                "rows": np.bincount(packed.level.slices.row, minlength=n_rows).tolist(),
                "packed": packed.packed,
            }
            for packed in levels
        ],
        "steps": [
            {"name": cell(name, _MAX_NAME), "startNs": start, "endNs": end}
            for name, start, end in shown.steps[:MAX_STEPS]
        ],
    }


def _list_sites(
    sites: Sequence[TimelineSite], kinds: Sequence[SliceKind], base: str
) -> dict[str, list[Any]]:
    """Return sites as columns; text columns are indices into ``texts``, 0 is none."""
    # Many sites share operators, modules and lines: each text is on the page once.
    texts: dict[str, int] = {"": 0}

    index = partial(_add_text, texts)
    columns = {
        "name": [index(site.name) for site in sites],
        "short": [
            index(short_kernel(site.name) if site.kind in _WITH_KERNELS else site.name)
            for site in sites
        ],
        "place": [index(_place(site.frame, base)) for site in sites],
        "op": [index(site.op or "") for site in sites],
        "module": [index(site.module) for site in sites],
        "style": [kinds.index(site.kind) for site in sites],
        "n": [site.n for site in sites],
        "totalNs": [site.total_ns for site in sites],
        "isPath": [int(site.is_path) for site in sites],
    }
    return {**columns, "texts": list(texts)}


def pack_arguments(ctx: Context, slices: Slices) -> dict[str, Any]:
    """Return what ``slice_arguments.js`` reads: arguments of slices that are one recorded event.

    The columns have a number for each slice, 0 for none: one more than its set of arguments; and as
    differences to the last slice that has one, the slice of its launch, its correlation, unless the
    launch has the same, and its external id. Columns that would exceed
    :data:`MAX_ARGUMENT_CHARACTERS` are left out, the last one first.
    """
    event_slices = np.flatnonzero(slices.event != NO_ROW)
    arguments = find_event_arguments(ctx, slices.event[event_slices].astype(np.intp))

    is_launched = arguments.launch != NO_ROW
    launch_slices = np.where(is_launched, event_slices[arguments.launch], MISSING)
    # A kernel has its launch's correlation: only what deviates is written.
    launch_correlation = np.full(len(event_slices), MISSING, dtype=np.int64)
    launch_correlation[is_launched] = arguments.correlation[arguments.launch[is_launched]]
    is_implied = arguments.correlation == launch_correlation
    correlation = np.where(is_implied, MISSING, arguments.correlation)

    columns: dict[str, dict[str, Any]] = {}
    characters_left = MAX_ARGUMENT_CHARACTERS
    for name, values in (
        ("set", arguments.of_event + 1),
        ("launch", _encode_differences(launch_slices)),
        ("correlation", _encode_differences(correlation)),
        ("externalId", _encode_differences(arguments.external_id)),
    ):
        of_slices = np.zeros(len(slices), dtype=np.int64)
        of_slices[event_slices] = values
        column = pack_columns([of_slices])
        characters_left -= len(column["text"])
        if characters_left < 0:
            break
        if values.any():
            columns[name] = column

    # Many sets share names and values of arguments.
    texts: dict[str, int] = {}
    sets = [[_add_text(texts, text) for pair in pairs for text in pair] for pairs in arguments.sets]
    is_whole = characters_left >= 0
    return {"texts": list(texts), "sets": sets, "columns": columns, "isWhole": is_whole}


def _add_text(texts: dict[str, int], text: str) -> int:
    """Return the index of a text, which is on the page once."""
    return texts.setdefault(cell(text, _MAX_NAME), len(texts))


def _encode_differences(values: Int64s) -> Int64s:
    """Return each value as its difference to the last one, in zigzag encoding plus 1; 0 for none.

    Args:
        values: :data:`~profkit.model.events.MISSING` for none. Shape ``(k,)``. Numbers that a
            browser cannot represent are left out.
    """
    is_exact = (values > -_MAX_ID) & (values < _MAX_ID)
    differences = np.diff(values[is_exact], prepend=0)

    # Zigzag: 0, -1, 1, -2 become 0, 1, 2, 3, so that small differences need few bytes.
    codes = np.zeros(len(values), dtype=np.int64)
    codes[is_exact] = np.where(differences >= 0, 2 * differences, -2 * differences - 1) + 1
    return codes


def _place(frame: Frame | None, base: str) -> str:
    """Return ``net.py:12 in forward``, or an empty text without a frame."""
    if frame is None:
        return ""
    where = source_line(frame.file, frame.line, base)
    return f"{where} in {frame.function}" if frame.function else where


@dataclass(frozen=True)
class PackedLevel:
    """A level of detail, and its slices as text.

    Attributes:
        path_ns: Resolution of the critical path's lane.
    """

    level: Level
    path_ns: int
    packed: dict[str, Any]

    @property
    def n_characters(self) -> int:
        """Return the length of the text."""
        return len(self.packed["text"])


def fit_levels(shown: Timeline, max_characters: int) -> list[PackedLevel]:
    """Return the levels of detail as text, the finest first, within a limit of the page's size.

    The coarsest level is what a page shows first, and the finest one has every event. The others
    only save the browser time, so they share what these two leave.
    """
    *finer, coarsest = shown.levels
    packed: list[PackedLevel] = []
    for level in (coarsest, *finer[:1], *finer[:0:-1]):
        # The finest level goes first, and the others between it and those already packed.
        place = int(len(packed) > 1)
        coarser_ns = packed[place].level.resolution_ns if packed else None
        characters_left = max_characters - sum(fitted.n_characters for fitted in packed)
        fitting = _fit_level(shown, level, characters_left, coarser_ns)
        if fitting is None:
            break

        # A level as fine as the finest one would only repeat it.
        if place and fitting.level.resolution_ns <= packed[0].level.resolution_ns:
            break
        packed.insert(place, fitting)
    return packed


def _fit_level(
    shown: Timeline, level: Level, characters_left: int, coarser_ns: int | None
) -> PackedLevel | None:
    """Return a level, as coarse as it must be to fit; None if the next coarser one is as fine."""
    for merged, path_ns in _make_coarser(shown, level, coarser_ns):
        plain = coarser_ns is None and len(merged.slices) <= MAX_PLAIN_SLICES
        if _estimate_characters(shown, merged) <= _SAMPLE_TOLERANCE * characters_left:
            packed = PackedLevel(merged, path_ns, _pack_level(shown, merged, plain=plain))
            if packed.n_characters <= characters_left:
                return packed
    return None


def _make_coarser(
    shown: Timeline, level: Level, coarser_ns: int | None
) -> Iterator[tuple[Level, int]]:
    """Return a level and coarser ones, with the resolution of the critical path's lane.

    In the finest level, this lane becomes coarser first: the path consists of parts of events that
    other lanes show.
    """
    yield level, level.resolution_ns

    # A level that is far too long is not tried at every resolution.
    least_ns = (coarser_ns or shown.end_ns - shown.start_ns) // _TRIES
    first_ns, end_ns = max(1, level.resolution_ns, least_ns), coarser_ns or _LONGEST_NS
    resolutions_ns = [
        first_ns << doublings
        for doublings in range(1, _LONGEST_NS.bit_length())
        if first_ns << doublings < end_ns
    ]

    slices = level.slices
    for lane in shown.lanes if level is shown.levels[0] else ():
        if lane.kind == "path":
            for path_ns in resolutions_ns:
                slices = coarser(slices, path_ns, row=lane.first_row)
                yield Level(level.resolution_ns, slices), path_ns

    slices = level.slices
    for resolution_ns in resolutions_ns:
        slices = coarser(slices, resolution_ns)
        yield Level(resolution_ns, slices), resolution_ns


def _estimate_characters(shown: Timeline, level: Level) -> int:
    """Return about how long the text of a level is, from a sample; 0 for levels that are short."""
    n = len(level.slices)
    if n <= _SAMPLE:
        return 0

    # Lanes compress differently: the sample has parts of all of them.
    part_starts = np.linspace(0, n - _PART, _SAMPLE // _PART).astype(np.intp)
    places = (part_starts[:, None] + np.arange(_PART)).ravel()
    sample = Level(level.resolution_ns, level.slices.of(places))
    return len(_pack_level(shown, sample, plain=False)["text"]) * n // _SAMPLE


def _pack_level(shown: Timeline, level: Level, *, plain: bool) -> dict[str, Any]:
    """Return the slices of a level as columns; each row begins at the timeline's start.

    The columns: time since the end of the slice before; length; site; events beyond the first; and
    for slices of several events the idle part of the length, and the longest event.
    """
    slices = level.slices
    lengths = slices.end_ns - slices.start_ns
    previous_end_ns = np.empty(len(slices), dtype=np.int64)
    previous_end_ns[1:] = slices.end_ns[:-1]
    previous_end_ns[np.flatnonzero(np.diff(slices.row, prepend=-1))] = shown.start_ns

    # A single event is busy all the time and is its own longest: most slices need four columns.
    is_merged = slices.n > 1
    columns = (
        slices.start_ns - previous_end_ns,
        lengths,
        slices.site,
        slices.n - 1,
        (lengths - slices.busy_ns)[is_merged],
        slices.longest_ns[is_merged],
    )
    return pack_columns(columns, plain=plain)


def _build_lane_table(shown: Timeline) -> SortableTable:
    """Return the lanes as a table, for screen readers."""
    span_ns = max(1, shown.end_ns - shown.start_ns)
    columns = (
        Column("name", "label", "lane"),
        Column("count", "n", "events"),
        Column("ns", "busy_ns", "busy", "time that its events cover"),
        Column(
            "share",
            "",
            "share",
            "of the time from the first event to the last",
            value=lambda lane: lane.busy_ns / span_ns,
        ),
        Column("count", "n_rows", "rows", "nesting depth, or events that run at the same time"),
    )

    return build_table(Table("lanes-table", "All lanes", columns, shown.lanes))
