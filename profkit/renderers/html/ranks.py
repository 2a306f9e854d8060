"""The ranks of a job: step times as a heat map, a timeline with a lane for each, tables."""

from typing import Any, Final

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.present.rank_timeline import MAX_RANKS, rank_timeline, step_ranges
from profkit.present.ranks import matched_text, unmatched_texts
from profkit.present.step_heat import BOUNDS, HeatMap, build_step_heat
from profkit.present.tables.rank_tables import (
    define_collective_sizes,
    define_collectives,
    define_ranks,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, build_table, cell, table_data
from profkit.renderers.html.timeline import (
    MAX_LEVEL_CHARACTERS,
    SCRIPTS,
    build_drawing,
    describe_view,
    fit_levels,
)

_ID: Final = "ranks"
_MAX_LABELS: Final = 12
"""Columns of the heat map with a visible label."""
_MAX_WITH_TIMES: Final = 8
"""Up to so many columns, cells have room for their times."""


def build_section(report: Report, options: Options) -> Section | None:
    """Return the ranks of a job, or None in a report on one recording."""
    if report.collectives is None:
        return None

    titles = (("Step time", False), ("Without waiting", True))
    heats = ((title, build_step_heat(report, own=is_own)) for title, is_own in titles)
    maps = [(title, heat) for title, heat in heats if heat is not None]
    shown = rank_timeline(report)
    levels = [] if shown is None else fit_levels(shown, MAX_LEVEL_CHARACTERS)
    tables = [
        table
        for table in (
            build_table(define_ranks(report), id="ranks-table", caption="All ranks"),
            build_table(define_collectives(report)),
            build_table(define_collective_sizes(report)),
        )
        if table.rows
    ]

    data: dict[str, Any] = table_data(*tables)
    scripts: tuple[str, ...] = (TABLE_SCRIPT,)
    if maps:
        data["heat"] = [_describe_heat(heat, report) for _, heat in maps]
        scripts = (*scripts, "heat.js")
    if shown is not None:
        data["timeline"] = build_drawing(shown, levels, options.base)
        scripts = (*scripts, *SCRIPTS)

    n_columns = len(maps[0][1].columns) if maps else 0
    body = fill(
        "ranks.html.j2",
        maps=maps,
        bounds=BOUNDS,
        label_interval=-(-n_columns // _MAX_LABELS) or 1,
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
        **(
            describe_view(shown, _ID, "Timeline of the ranks", "all-reduce, rank 3")
            if shown is not None
            else {}
        ),
    )
    return Section(_ID, "Ranks", body, scripts=scripts, data=data)


def _n_ranks(report: Report) -> str:
    """Return ``16 of 64 ranks``, or ``64 ranks`` if every rank has a recording."""
    missing = len(report.missing_ranks)
    of_all = f"{len(report.ranks):,} of " if missing else ""
    return of_all + counted(len(report.ranks) + missing, "rank")


def _describe_heat(heat: HeatMap, report: Report) -> dict[str, Any]:
    """Return what ``heat.js`` shows: for each cell its rank, step, times in ns and level."""
    ranges = {name: (start, end) for name, start, end in step_ranges(report)}
    # A column may be several steps, and a cell is the longest of them: cells name their step.
    names = list(dict.fromkeys(name for column in heat.columns for name in column))
    numbers = {name: number for number, name in enumerate(names)}

    return {
        "medianNs": heat.median_ns,
        "steps": [cell(name) for name in names],
        "ranges": [ranges.get(name) for name in names],
        "cells": [
            [
                step and [step.rank, numbers[step.step], step.time_ns, step.wait_ns, step.level]
                for step in row
            ]
            for row in heat.cells
        ],
    }
