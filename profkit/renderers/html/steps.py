"""Where the time of each step went, as bars that lead to the step's timeline."""

from typing import Any, Final

from profkit.model.report import Report, StepSummary
from profkit.present.headline import part_label
from profkit.renderers.html._colors import color_of
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import CHART_SCRIPT, Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, cell, table

_SCRIPTS: Final = (CHART_SCRIPT, "stacked.js", "steps.js")


def section(report: Report, options: Options) -> Section | None:
    """A bar and a row for each step, or None without steps.

    Args:
        options: Whether there is a timeline.
    """
    steps = report.summary.steps
    if not steps:
        return None
    rows = _table(steps)
    data: dict[str, Any] = {"tables": {rows.id: rows.data}}
    # Reports that an earlier version saved do not tell where the time of each step went.
    is_drawn = any(step.parts for step in steps)
    if is_drawn:
        data["steps"] = _drawn(steps)
    return Section(
        id="steps",
        title="Steps",
        body=fill(
            "steps.html.j2",
            table=rows,
            step_definition=report.source.step_definition,
            n=len(steps),
            is_drawn=is_drawn,
            has_timeline=options.recording is not None,
        ),
        scripts=(TABLE_SCRIPT, *(_SCRIPTS if is_drawn else ())),
        data=data,
        needs_plotly=is_drawn,
    )


def kinds_of(steps: tuple[StepSummary, ...]) -> list[str]:
    """Every kind of part that a step has, in the order of their parts."""
    longest = max(steps, key=lambda step: len(step.parts))
    every = [*longest.parts, *(part for step in steps for part in step.parts)]
    return list(dict.fromkeys(part.kind for part in every))


def _drawn(steps: tuple[StepSummary, ...]) -> dict[str, Any]:
    """What ``steps.js`` draws: a series a kind, with a value a step."""
    by_step = [{part.kind: part.ns for part in step.parts} for step in steps]
    return {
        "names": [cell(step.name) for step in steps],
        "startNs": [step.start_ns for step in steps],
        "durNs": [step.dur_ns for step in steps],
        "series": [
            {
                "label": part_label(kind),
                "color": color_of(kind),
                "isIdle": kind.startswith("idle-") or kind in {"data", "python"},
                "ns": [parts.get(kind, 0) for parts in by_step],
            }
            for kind in kinds_of(steps)
        ],
    }


def _table(steps: tuple[StepSummary, ...]) -> SortableTable:
    on_device = any(step.gpu_busy_ns is not None for step in steps)
    device = (
        SortableColumn("Device busy", "ns", "time in which any device worked"),
        SortableColumn("Device idle", "ns", "the rest of the step"),
    )
    columns = (
        SortableColumn("Step", "name"),
        SortableColumn("Length", "ns", "on the host"),
        *(device if on_device else ()),
        SortableColumn("Waits for data", "ns", "in a loader's __next__"),
        SortableColumn("In syncs", "ns", "the host waited for the device"),
    )
    rows = (
        (
            step.name, step.dur_ns,
            *((step.gpu_busy_ns, step.gpu_idle_ns) if on_device else ()),
            step.data_wait_ns, step.sync_ns,
        )
        for step in steps
    )  # fmt: skip
    ranges = [(step.start_ns, step.start_ns + step.dur_ns) for step in steps]
    return table("steps-table", "Every step", columns, rows, ranges=ranges)
