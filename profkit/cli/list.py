"""``profkit list``: the recordings that there are, the newest first."""

import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from profkit.cli._newest import find_runs_in, name_files
from profkit.cli._next_command import suggest
from profkit.cli._options import (
    add_text_or_json_option,
    add_top_option,
    complete_files,
    read_options,
)
from profkit.cli._output import STDOUT, layout, say
from profkit.cli._progress import Progress, progress
from profkit.dataclass import dataclass
from profkit.folders import traces_folder
from profkit.names import visible
from profkit.units import format_age, format_ns

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.analysis.run_figures import RunFigures
    from profkit.readers.runs import Run

_SCHEMA: Final = "profkit.runs/1"
_PATIENCE_S: Final = 2.0
"""How long small recordings without known figures are analyzed for a list."""
_SMALL_BYTES: Final = 4 << 20
_DATED_NS: Final = 172_800_000_000_000
"""An older recording has a date instead of an age."""
_HEAD: Final = ("recorded", "program", "step time", "first finding")


@dataclass(frozen=True)
class Row:
    """A run of the list.

    Attributes:
        figures: Its main figures; None if it is not analyzed.
        error: Why it cannot be analyzed, or empty.
    """

    run: "Run"
    figures: "RunFigures | None" = None
    error: str = ""


@click.command(
    short_help="List the recordings, newest first.",
    epilog="\b\nExamples:\n  profkit list\n  profkit list traces/train --json",
)
@click.argument("folder", metavar="[FOLDER]", default="", shell_complete=complete_files)
@add_top_option(20, "Number of recordings.")
@click.option(
    "--analyze",
    "is_complete",
    is_flag=True,
    help="Analyze all that are not analyzed yet, however long it takes.",
)
@add_text_or_json_option
@click.option("--json", "format_", flag_value="json", help="Like --format json.")
def command(*, folder: str, top: int, is_complete: bool, format_: str) -> int:
    """List the recordings in FOLDER, the newest first: program, step time and first finding.

    FOLDER is $PROFKIT_DIR, else traces. The ranks of a job are one recording. The first one is what
    analyze, view, explain, what-if and export take without a path. Figures are known of recordings
    that were analyzed before; small ones are analyzed meanwhile, for up to two seconds.
    """
    from profkit.readers.runs import take_two

    folder = folder or traces_folder()
    options = read_options()
    runs = list(itertools.islice(find_runs_in(folder), top + 1))
    with progress() as shown:
        rows = list(_build_rows(runs[:top], options, shown, is_complete=is_complete))

    if format_ == "json":
        say(_encode(rows, folder, has_more=len(runs) > top))
    else:
        say(format_rows(rows, folder, has_more=len(runs) > top, now_ns=time.time_ns()))
        if folder == traces_folder():
            has_pair = len(take_two(runs)) > 1
            suggest(["profkit", "view"], *([["profkit", "diff"]] if has_pair else []))
    return 0


def _build_rows(
    runs: "Sequence[Run]", options: "AnalysisOptions", shown: Progress, *, is_complete: bool
) -> Iterator[Row]:
    """Yield the rows with the figures that are known, or can be found out soon."""
    from profkit.analysis.run_figures import find_figures
    from profkit.readers.recordings import stored_bytes

    # A list has to be quick. What is missing is analyzed for the next one.
    began = time.monotonic()
    for run in runs:
        figures = find_figures(run.paths, options)
        is_soon = (
            time.monotonic() - began < _PATIENCE_S
            and sum(map(stored_bytes, run.paths)) <= _SMALL_BYTES
        )
        if figures is None and (is_complete or is_soon):
            yield _analyze(run, options, shown)
        else:
            yield Row(run, figures)


def _analyze(run: "Run", options: "AnalysisOptions", shown: Progress) -> Row:
    """Analyze a run for its figures; what cannot be read has a reason instead."""
    from profkit.analysis.run_figures import keep_figures
    from profkit.analysis.several import LOCAL, AnalysisRequest, analyze_all
    from profkit.cli._inputs import choose_newest
    from profkit.errors import LoadError

    try:
        analyses = analyze_all(run.recordings, AnalysisRequest(options), LOCAL, shown)
    except LoadError as error:
        # The path is below the row.
        return Row(run, error=error.message.replace(run.newest, "the file"))
    # An earlier job's ranks may be among them.
    report = choose_newest(analyses, run.newest).reports[0].report
    return Row(run, keep_figures(report, run.paths, options))


def format_rows(rows: Sequence[Row], folder: str, *, has_more: bool, now_ns: int) -> str:
    """Format the list as text: figures in columns, and below each row its path.

    Args:
        rows: The newest first.
        folder: Where they are.
        has_more: Whether there are older ones.
        now_ns: The time now, from which ages are counted.
    """
    style = layout(STDOUT)
    cells = [_HEAD, *(_format_cells(row, now_ns) for row in rows)]
    widths = [max(len(cell[column]) for cell in cells) for column in range(len(_HEAD) - 1)]
    indent = widths[0] + 2

    # A path is too long for a column, and must not be cut: it is there to be copied.
    lines = []
    for number, (when, program, step, finding) in enumerate(cells):
        line = f"{when:<{widths[0]}}  {program:<{widths[1]}}  {step:>{widths[2]}}  {finding}"
        lines.append(_cut(line, style["width"]))
        if number:
            path = name_files(rows[number - 1].run)
            text = f"{'':{indent}}{path}"
            lines.append(click.style(text, dim=True) if style["color"] else text)

    if style["color"]:
        lines[0] = click.style(lines[0], bold=True)
    if has_more:
        lines += ["", f"Older ones in {visible(folder)}: profkit list --top {2 * len(rows)}"]
    if any(row.figures is None and not row.error for row in rows):
        lines += ["", "Not analyzed yet: profkit list --analyze"]
    return "\n".join(lines) + "\n"


def _format_cells(row: Row, now_ns: int) -> tuple[str, str, str, str]:
    """Return the texts of a row, in the order of the heads."""
    age_ns = now_ns - row.run.time_ns
    if age_ns < _DATED_NS:
        when = format_age(age_ns)
    else:
        when = datetime.fromtimestamp(row.run.time_ns // 1_000_000_000).strftime("%Y-%m-%d %H:%M")  # noqa: DTZ006  (local time)

    program = visible(row.run.program)
    if row.run.n_ranks > 1:
        program += f" ({row.run.n_ranks} ranks)"

    if row.figures is None:
        return when, program, "-", visible(row.error) or "not analyzed"
    step = "-" if row.figures.step_ns is None else format_ns(row.figures.step_ns)
    finding = row.figures.finding
    if finding is None:
        return when, program, step, "no problems found"
    place = f" at {visible(finding.place)}" if finding.place else ""
    return when, program, step, f"{finding.severity} {finding.rule} {finding.name}{place}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def _encode(rows: Sequence[Row], folder: str, *, has_more: bool) -> str:
    import msgspec

    tree = {
        "schema": _SCHEMA,
        "folder": folder,
        "has_more": has_more,
        "runs": [_build_tree(row) for row in rows],
    }
    text = msgspec.json.format(msgspec.json.encode(tree), indent=2)
    return text.decode() + "\n"


def _build_tree(row: Row) -> dict[str, Any]:
    """Return a row for JSON; figures that are not known are null."""
    import msgspec

    figures = row.figures
    finding = None if figures is None else figures.finding
    return {
        "program": row.run.program,
        "recorded_ns": row.run.time_ns,
        "kind": row.run.group[1],
        "n_ranks": row.run.n_ranks,
        "paths": row.run.paths,
        "step_ns": None if figures is None else figures.step_ns,
        "n_findings": None if figures is None else figures.n_findings,
        "finding": None if finding is None else msgspec.to_builtins(finding),
        "error": row.error or None,
    }
