"""The next useful command, after a command: one line on a terminal, and nothing on a pipe."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from profkit.cli._output import STDOUT, stream_layout
from profkit.names import short_path, visible

if TYPE_CHECKING:
    from profkit.model.difference import Difference
    from profkit.model.report import Report


def say_next(*commands: Sequence[str]) -> None:
    """Say on stderr what to type next, if somebody is there to read it and to type.

    Args:
        *commands: Commands as lists of words. One that names what a terminal cannot show is left
            out, since it could not be typed either.
    """
    if os.environ.get("PROFKIT_QUIET", "0") not in {"", "0"} or not sys.stderr.isatty():
        return
    shown = [shlex.join(command) for command in commands]
    typed = [command for command in shown if command == visible(command)]
    if typed:
        text = f"next: {'  or  '.join(typed)}"
        color = stream_layout(sys.stderr)["color"]
        click.echo(click.style(text, dim=True) if color else text, err=True)


def after_report(
    report: "Report", *paths: str, output: str = STDOUT, format_: str = "text"
) -> None:
    """Say what to type after a report: what shows it whole, and what says more of its first rule.

    Args:
        *paths: The files it was made from.
        output: Where it went.
    """
    if output == STDOUT and not sys.stdout.isatty():
        return  # into a pipe: nobody looks here now
    page = [["python", "-m", "webbrowser", output]] if format_ == "html" else _view(paths)
    say_next(*page, *_first_rule(report))


def after_run(report: "Report", files: Sequence[str]) -> None:
    """Say what to type after a program was run.

    Args:
        files: What was recorded of it.
    """
    paths = [short_path(file, str(Path.cwd())) for file in files]
    folders = [str(Path(path).parent) for path in paths[:1] if report.source.kind == "trace"]
    boards = [["tensorboard", "--logdir", folder] for folder in folders]
    say_next(*_view(paths[:1]), *boards, *_first_rule(report))


def _view(paths: Sequence[str]) -> list[list[str]]:
    return [["profkit", "view", *paths]] if paths else []


def _first_rule(report: "Report") -> list[list[str]]:
    return [["profkit", "rules", each.rule] for each in report.findings[:1]]


def after_difference(
    difference: "Difference", before: str, after: str, *, output: str = STDOUT
) -> None:
    """Say what to type after a comparison: the report of what appeared, or else all that changed.

    Args:
        before: The first recording.
        after: The second.
        output: Where it went.
    """
    if output == STDOUT and not sys.stdout.isatty():
        return
    worse = any(change.status in {"new", "worse"} for change in difference.of_kind("finding"))
    if worse:
        say_next(["profkit", "analyze", after])
    elif difference.changes:
        say_next(["profkit", "diff", before, after, "--verbose"])
