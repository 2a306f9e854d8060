"""The ranks of a job: step times as a heat map, a timeline with a lane for each, tables."""

from typing import Any, Final

from profkit.engine.wording import counted, rank_list
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.rank_timeline import MAX_RANKS, rank_timeline, step_ranges
from profkit.present.ranks import (
    group_name,
    matched_text,
    mean_transfer_ns,
    mean_wait_ns,
    often_last,
    unmatched_texts,
    why_last,
)
from profkit.present.step_heat import BOUNDS, HeatMap, build_step_heat
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, cell, table
from profkit.renderers.html.timeline import (
    MAX_LEVEL_CHARACTERS,
    SCRIPTS,
    drawing,
    elements,
    levels_within,
)

_ID: Final = "ranks"
_MAX_LABELS: Final = 12
"""Columns of the heat map with a visible label."""
_MAX_WITH_TIMES: Final = 8
"""Up to so many columns, cells have room for their times."""


def section(report: Report, options: Options) -> Section | None:
    """The ranks of a job, or None in a report on one recording."""
    if report.collectives is None:
        return None
    maps = [(title, found) for title, own in (("Step time", False), ("Without waiting", True))
            if (found := build_step_heat(report, own=own)) is not None]  # fmt: skip
    shown = rank_timeline(report)
    levels = [] if shown is None else levels_within(shown, MAX_LEVEL_CHARACTERS)
    tables = [each for each in (_ranks(report), _collectives(report)) if each.rows]
    data: dict[str, Any] = {"tables": {each.id: each.data for each in tables}}
    scripts: tuple[str, ...] = (TABLE_SCRIPT,)
    if maps:
        data["heat"] = [_heat(found, report) for _, found in maps]
        scripts = (*scripts, "heat.js")
    if shown is not None:
        data["timeline"] = drawing(shown, levels, options.base)
        scripts = (*scripts, *SCRIPTS)
    n_columns = len(maps[0][1].columns) if maps else 0
    body = fill(
        "ranks.html.j2",
        maps=maps,
        bounds=BOUNDS,
        every=-(-n_columns // _MAX_LABELS) or 1,
        with_times=n_columns <= _MAX_WITH_TIMES,
        has_timeline=shown is not None,
        n_left_out=max(0, len(report.ranks) - MAX_RANKS),
        n_ranks=_n_ranks(report),
        max_ranks=MAX_RANKS,
        resolution_ns=levels[0].level.resolution_ns if levels else 0,
        rank=report.source.rank,
        matched=matched_text(report.collectives),
        unmatched=unmatched_texts(report.collectives),
        tables=tables,
        **(elements(shown, _ID, "Timeline of the ranks", "all-reduce, rank 3")
           if shown is not None else {}),
    )  # fmt: skip
    return Section(_ID, "Ranks", body, scripts=scripts, data=data)


def _n_ranks(report: Report) -> str:
    """``16 of 64 ranks``."""
    missing = len(report.missing_ranks)
    of_all = f"{len(report.ranks):,} of " if missing else ""
    return of_all + counted(len(report.ranks) + missing, "rank")


def _heat(found: HeatMap, report: Report) -> dict[str, Any]:
    """What ``heat.js`` shows: for each cell its rank, step, times in nanoseconds and level."""
    ranges = {name: (start, end) for name, start, end in step_ranges(report)}
    names = list(dict.fromkeys(name for column in found.columns for name in column))
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "medianNs": found.median_ns,
        "steps": [cell(name) for name in names],
        "ranges": [ranges.get(name) for name in names],
        "cells": [
            [each and [each.rank, numbers[each.step], each.time_ns, each.wait_ns, each.level]
             for each in row]
            for row in found.cells
        ],
    }  # fmt: skip


def _ranks(report: Report) -> SortableTable:
    data = (SortableColumn("Waiting for data", "ns", "data_wait_ns", "per step"),)
    clocks = (
        SortableColumn("Clock", "ns", "offset_ns", "what its clock shows more than the first"),
        SortableColumn("Clock error", "ns", "error_ns", "deviation of single ends from that"),
    )
    columns = (
        SortableColumn("Rank", "text", lambda each: str(each.rank)),
        SortableColumn("Step", "ns", "step_ns", "mean step time"),
        SortableColumn("Compute", "ns", "compute_ns", "per step, without collectives"),
        *(data if any(each.data_wait_ns for each in report.ranks) else ()),
        SortableColumn(
            "Waiting for ranks", "ns", "collective_wait_ns",
            "per step, in collectives until the last rank had started",
        ),
        SortableColumn("Transfer", "ns", "transfer_ns", "per step, the rest of collectives"),
        SortableColumn("Last in", "count", "n_last", "collectives that it was the last to start"),
        SortableColumn(
            "Late", "ns", "late_ns", "in these, after the median of the other ranks, in total"
        ),
        *(clocks if any(each.offset_ns or each.error_ns for each in report.ranks) else ()),
        SortableColumn("Host", "text", "host"),
        SortableColumn("File", "place", lambda each: short_path(each.file, report.source.path)),
    )  # fmt: skip
    return table("ranks-table", "All ranks", columns, report.ranks)


def _collectives(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Collective", "name", "kind"),
        SortableColumn("Group", "name", group_name),
        SortableColumn("Ranks", "text", lambda each: rank_list(each.ranks)),
        SortableColumn("Number", "count", "n", "matched collectives"),
        SortableColumn(
            "Waiting", "ns", mean_wait_ns, "mean of all calls, until the last rank had started"
        ),
        SortableColumn("Transfer", "ns", mean_transfer_ns, "mean, from then to the end on all"),
        SortableColumn(
            "Bus GB/s", "number",
            lambda each: None if each.bus_bytes_per_s is None else each.bus_bytes_per_s / 1e9,
            "bus bandwidth as nccl-tests defines it",
        ),
        SortableColumn(
            "Often last", "text", often_last, "the rank that was last in most, and in how many"
        ),
        SortableColumn(
            "Late", "ns", lambda each: each.last[0].late_ns if each.last else None,
            "in these, after the median of the other ranks, in total",
        ),
        SortableColumn("Why", "text", why_last),
    )  # fmt: skip
    every = report.collectives.groups if report.collectives is not None else ()
    return table("collectives", "Collectives", columns, every)
