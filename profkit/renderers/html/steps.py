"""The time of each step by part, as bars that link to the step on the timeline."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.model.step_summary import StepSummary, is_wait
from profkit.present.labels import part_label, step_range
from profkit.present.part_colors import color_of
from profkit.present.tables.step_tables import define_steps
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, build_table, cell, table_data

_SCRIPTS: Final = (TABLE_SCRIPT, CHART_SCRIPT, "stacked.js", "steps.js")


def build_section(report: Report, options: Options) -> Section | None:
    """Return a bar and a row for each step, or None without steps."""
    steps = report.summary.steps
    if not steps:
        return None

    # Only a range on the timeline identifies a step there: names may repeat.
    ranges = list(zip(*_bounds(steps), strict=True))
    rows = build_table(define_steps(report), id="steps-table", ranges=ranges)

    return Section(
        id="steps",
        title="Steps",
        body=fill(
            "steps.html.j2",
            table=rows,
            step_definition=report.source.step_definition,
            n=len(steps),
            has_timeline=options.recording is not None,
        ),
        scripts=_SCRIPTS,
        data={**table_data(rows), "steps": _build_chart(steps)},
        figure=", ".join(filter(None, (counted(len(steps), "step"), step_range(report)))),
    )


def stacked_series(kinds: Sequence[str], bars: Sequence[Mapping[str, int]]) -> list[dict[str, Any]]:
    """Return what ``stacked.js`` draws: a series for each kind of part, with a value for each bar.

    Args:
        kinds: Kinds of parts, as in :class:`~profkit.model.step_summary.TimePart`, in order.
        bars: For each bar its parts in nanoseconds, by kind.
    """
    return [
        {
            "label": part_label(kind),
            "color": color_of(kind),
            "isIdle": is_wait(kind),
            "ns": [parts.get(kind, 0) for parts in bars],
        }
        for kind in kinds
    ]


def _build_chart(steps: tuple[StepSummary, ...]) -> dict[str, Any]:
    # The kinds of the step with most parts, in their order; then kinds that only others have.
    longest = max(steps, key=lambda step: len(step.parts))
    parts = [*longest.parts, *(part for step in steps for part in step.parts)]

    return {
        "names": [cell(step.name) for step in steps],
        "startNs": _bounds(steps)[0],
        "durNs": [step.time_ns for step in steps],
        "series": stacked_series(
            list(dict.fromkeys(part.kind for part in parts)),
            [{part.kind: part.ns for part in step.parts} for step in steps],
        ),
    }


def _bounds(steps: tuple[StepSummary, ...]) -> tuple[list[int], list[int]]:
    """Return where steps begin and end, on the devices if the host runs ahead of them."""
    starts = [step.time_start_ns for step in steps]
    return starts, [start + step.time_ns for start, step in zip(starts, steps, strict=True)]
