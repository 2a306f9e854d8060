"""The next useful command, after a command: one line on a terminal, and nothing on a pipe."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from profkit.cli._output import STDOUT, stream_layout
from profkit.names import visible

if TYPE_CHECKING:
    from profkit.model.report import Report


def say_next(*commands: Sequence[str], output: str = STDOUT) -> None:
    """Say on stderr what to type next, if somebody is there to read it and to type.

    Args:
        *commands: Commands as lists of words. One that names what a terminal cannot show is left
            out, since it could not be typed either.
        output: Where the product went; into a pipe, nobody reads what stands beside it.
    """
    quiet = os.environ.get("PROFKIT_QUIET", "0") not in {"", "0"}
    piped = output == STDOUT and not sys.stdout.isatty()
    if quiet or piped or not sys.stderr.isatty():
        return
    shown = [shlex.join(command) for command in commands]
    typed = [command for command in shown if command == visible(command)]
    if typed:
        text = f"next: {'  or  '.join(typed)}"
        color = stream_layout(sys.stderr)["color"]
        click.echo(click.style(text, dim=True) if color else text, err=True)


def after_report(report: "Report", *paths: str, output: str = STDOUT) -> None:
    """Say what to type after a report: what shows it whole, and what says more of its first rule.

    Args:
        report: The report.
        *paths: The files it was made from.
        output: Where it went.
    """
    commands = [["profkit", "view", *paths]] if paths else []
    if report.findings:
        commands.append(["profkit", "rules", report.findings[0].rule])
    say_next(*commands, output=output)
