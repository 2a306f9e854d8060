"""Suggests the next useful command: one line on a terminal, nothing in a pipe."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from profkit.cli._output import STDOUT, stream_layout
from profkit.folders import working_folder
from profkit.names import short_path, visible

if TYPE_CHECKING:
    from profkit.model.difference import Difference
    from profkit.model.report import Report


def suggest(*commands: Sequence[str]) -> None:
    """Print the next commands to stderr if it is a terminal.

    Args:
        *commands: Commands as lists of words. Commands with characters that a terminal cannot show
            are omitted, since they could not be typed either.
    """
    # A suggestion in a pipe or in a log would be noise.
    if os.environ.get("PROFKIT_QUIET", "0") not in {"", "0"} or not sys.stderr.isatty():
        return
    joined = [shlex.join(command) for command in commands]
    typeable = [command for command in joined if command == visible(command)]
    if typeable:
        text = f"next: {'  or  '.join(typeable)}"
        color = stream_layout(sys.stderr)["color"]
        click.echo(click.style(text, dim=True) if color else text, err=True)


def after_report(
    report: "Report", *paths: str, output: str = STDOUT, format_: str = "text"
) -> None:
    """Suggest commands that show the whole report, and that explain its first finding.

    Args:
        *paths: The files that it was made from.
        output: Where it was written to.
    """
    if output == STDOUT and not sys.stdout.isatty():
        return
    page = [["python", "-m", "webbrowser", output]] if format_ == "html" else _view(paths)
    suggest(*page, *_first_finding(report, paths))


def after_run(report: "Report", files: Sequence[str]) -> None:
    """Suggest what to do with the recorded files after ``profkit run``."""
    paths = [short_path(file, str(working_folder())) for file in files]
    folders = [str(Path(path).parent) for path in paths[:1] if report.source.kind == "trace"]
    boards = [["tensorboard", "--logdir", folder] for folder in folders]
    suggest(*_view(paths[:1]), *boards, *_first_finding(report, paths[:1]))


def after_difference(
    difference: "Difference", before: str, after: str, *, output: str = STDOUT
) -> None:
    """Suggest the report of the second recording if a finding is new or worse, else all changes."""
    if output == STDOUT and not sys.stdout.isatty():
        return
    if any(change.status in {"new", "worse"} for change in difference.of_kind("finding")):
        suggest(["profkit", "analyze", after])
    elif difference.changes:
        suggest(["profkit", "diff", before, after, "--verbose"])


def _view(paths: Sequence[str]) -> list[list[str]]:
    return [["profkit", "view", *paths]] if paths else []


def _first_finding(report: "Report", paths: Sequence[str]) -> list[list[str]]:
    from profkit.present.finding_ids import finding_ids

    ids = finding_ids(report.findings[:1])
    return [["profkit", "explain", id_, *paths] for id_ in ids]
