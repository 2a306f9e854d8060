"""``profkit doctor``: checks whether this machine can train and profile."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from profkit.cli._options import add_text_or_json_option
from profkit.cli._output import layout, say

if TYPE_CHECKING:
    from profkit.capture.process.doctor import Line

_STYLE: Final = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command(
    short_help="Check that this machine can train and profile.",
    epilog="\b\nExample: profkit doctor --format json",
)
@add_text_or_json_option
def command(format_: str) -> int:
    """Check whether this machine can train and profile.

    Each line is ok, a note, or a problem with its fix. The exit code is 1 if there is a problem.
    """
    from profkit.capture.process.doctor import examine
    from profkit.capture.process.machine import gather

    lines = examine(gather())
    text = _as_json(lines) if format_ == "json" else format_page(lines, layout())
    say(text)
    return int(any(line.status == "problem" for line in lines))


def format_page(lines: tuple["Line", ...], layout: dict[str, Any]) -> str:
    """Format the lines of :func:`profkit.capture.process.doctor.examine` as text.

    Args:
        layout: Has ``width`` and ``color``.
    """
    import textwrap

    from profkit.names import visible

    topics = max(len(line.topic) for line in lines) + 2
    indent = " " * (9 + topics)

    shown = []
    for line in lines:
        status = f"{line.status:<9}"
        if layout["color"]:
            status = click.style(status, fg=_STYLE[line.status])
        for number, text in enumerate(filter(None, (line.text, line.fix))):
            # The fix is below its problem, behind an arrow.
            lead = "" if number == 0 else "→ "
            wrapped = textwrap.wrap(lead + visible(text), max(layout["width"] - len(indent), 30))
            for place, row in enumerate(wrapped):
                first = number == 0 and place == 0
                shown.append(f"{status}{line.topic:<{topics}}{row}" if first else indent + row)
    return "\n".join([*shown, "", _conclusion(lines)]) + "\n"


def _conclusion(lines: tuple["Line", ...]) -> str:
    problems = sum(line.status == "problem" for line in lines)
    if problems:
        return "One problem to solve." if problems == 1 else f"{problems} problems to solve."
    return "Ready. Next: profkit demo, or profkit run train.py"


def _as_json(lines: tuple["Line", ...]) -> str:
    problems = any(line.status == "problem" for line in lines)
    page = {"ready": not problems, "lines": [asdict(line) for line in lines]}
    return json.dumps(page, indent=2) + "\n"
