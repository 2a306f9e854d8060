"""Suggests the next useful command: one line on a terminal, nothing in a pipe."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from profkit.cli._newest import is_newest
from profkit.cli._output import STDOUT, stream_layout
from profkit.folders import working_folder
from profkit.names import short_path, visible

if TYPE_CHECKING:
    from profkit.cli._newest import Selection
    from profkit.model.difference import Difference
    from profkit.model.report import Report

_MAX_COLUMNS: Final = 100
"""A line of more names its first command alone."""


def suggest(*commands: Sequence[str]) -> None:
    """Print the next commands to stderr if it is a terminal: the first, and those that fit beside.

    Args:
        *commands: Commands as lists of words. Commands with characters that a terminal cannot show
            are omitted, since they could not be typed either.
    """
    if not _is_shown():
        return
    joined = [shlex.join(command) for command in commands]
    typeable = [command for command in joined if command == visible(command)]
    if typeable:
        text = f"next: {typeable[0]}"
        for command in typeable[1:]:
            longer = f"{text}  or  {command}"
            text = longer if len(longer) <= _MAX_COLUMNS else text
        color = stream_layout(sys.stderr)["color"]
        click.echo(click.style(text, dim=True) if color else text, err=True)


def _is_shown() -> bool:
    """Tell whether commands are suggested: in a pipe or in a log they would be noise."""
    is_quiet = os.environ.get("PROFKIT_QUIET", "0") not in {"", "0"}
    return not is_quiet and sys.stderr is not None and sys.stderr.isatty()


def after_report(
    report: "Report", *paths: str, output: str = STDOUT, format_: str = "text"
) -> None:
    """Suggest commands that show the whole report, and that explain its first finding.

    Args:
        *paths: The files that it was made from.
        output: Where it was written to.
    """
    if not _is_shown() or (output == STDOUT and not sys.stdout.isatty()):
        return
    place = _name_place(paths, is_job=report.source.kind == "ranks")
    view = ["profkit", "view", *place]
    page = ["python", "-m", "webbrowser", output] if format_ == "html" else view
    suggest(page, *_first_finding(report, place))


def after_run(report: "Report", files: Sequence[str], *, is_brief: bool = False) -> None:
    """Suggest what to do with the recorded files after ``profkit run``.

    Args:
        is_brief: Whether the report was printed without its details.
    """
    if _is_shown():
        place = _name_place(files, is_job=report.source.kind == "ranks")
        suggest(
            ["profkit", "analyze" if is_brief else "view", *place], *_first_finding(report, place)
        )


def after_difference(
    difference: "Difference",
    before: "Selection",
    after: "Selection",
    *,
    output: str = STDOUT,
) -> None:
    """Suggest the report of the second recording if a finding is new or worse, else all changes."""
    if output == STDOUT and not sys.stdout.isatty():
        return
    if any(change.status in {"new", "worse"} for change in difference.of_kind("finding")):
        suggest(["profkit", "analyze", *_name_place(after.paths, is_job=_is_job(after))])
    elif difference.changes:
        # What was chosen without paths is chosen without paths again.
        paths = [] if is_newest(after.newest) else [before.paths[0], after.paths[0]]
        suggest(["profkit", "diff", *paths, "--verbose"])


def _is_job(selection: "Selection") -> bool:
    return len(selection.recordings) > 1


def _name_place(paths: Sequence[str], *, is_job: bool) -> list[str]:
    """Name some files as a command takes them: not at all if they are the newest run.

    Args:
        paths: The files of one recording, or of the ranks of a job.
        is_job: Whether they are of ranks, of which the folder is named.
    """
    if is_newest(paths[0]):
        return []
    path = short_path(paths[0], str(working_folder()))
    return [os.path.split(path)[0] or "."] if is_job else [path]


def _first_finding(report: "Report", place: Sequence[str]) -> list[list[str]]:
    """Return the command that explains the first finding, if there is one."""
    from profkit.present.finding_ids import finding_ids

    # With other rules than those of the configuration, other findings have the numbers.
    context = click.get_current_context(silent=True)
    chosen = context.params if context is not None else {}
    is_chosen = bool(chosen.get("select") or chosen.get("ignore"))
    return [
        ["profkit", "explain", finding_id if is_chosen else "1", *place]
        for finding_id in finding_ids(report.findings[:1])
    ]
