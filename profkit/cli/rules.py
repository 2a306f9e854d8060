"""``profkit rules``: the catalogue, or one rule's page."""

import inspect
import io
import json
import re
import textwrap
from typing import TYPE_CHECKING

import click

from profkit.cli._output import layout, say
from profkit.cli._suggest import did_you_mean

_CODE_MARK = re.compile(r"^ *::\n\n?", re.MULTILINE)
"""What tells reStructuredText that code follows; indentation tells a reader as much."""
_SECTION = re.compile(r"^\S.*:$", re.MULTILINE)

_ID_WIDTH = len("SYN001")
_SEVERITY_WIDTH = len("severity")
_SHORTEST_TITLE = 24
"""Where a title has less room than this, it stands below its name."""

if TYPE_CHECKING:
    from profkit.engine.detector import Rule, RuleInfo


@click.command(
    short_help="List what profkit looks for, or show one rule.",
    epilog="\b\nExamples:\n  profkit rules\n  profkit rules item-sync\n  profkit rules MEM",
)
@click.argument("rule", required=False)
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text",
              help="How to show it.")  # fmt: skip
def command(rule: str | None, format_: str) -> int:
    """Show what profkit looks for; with RULE, one rule's page: why it matters and how to fix it.

    RULE is an id such as SYN001, a name such as item-sync, or a family such as SYN.
    """
    chosen = _chosen(rule)
    if format_ == "json":
        text = json.dumps([_card(each) for each in chosen], indent=2) + "\n"
    elif rule is not None and len(chosen) == 1:
        text = page(chosen[0], color=layout()["color"])
    else:
        text = _table(chosen)
    say(text)
    return 0


def page(rule: "Rule", *, color: bool = False) -> str:
    """A rule's page as text: its card, and its docstring without the marks of its markup.

    Args:
        color: Whether its headings stand out by terminal colours.
    """
    info = rule.INFO
    head = f"{info.id} {info.name}: {info.title}"
    facts = f"{info.severity} · needs {_needs(info) or 'nothing special'} · since {info.since}"
    text = inspect.cleandoc(rule.__doc__ or "").replace("``", "`")
    text = _CODE_MARK.sub("", text)
    if text.startswith(f"{info.id} "):
        text = text.partition("\n")[2].lstrip("\n")
    if color:
        head = click.style(head, bold=True)
        text = _SECTION.sub(lambda found: click.style(found.group(), bold=True), text)
    return f"{head}\n{facts}\n\n{text}\n"


def _chosen(word: str | None) -> tuple["Rule", ...]:
    """The rules that a word names; all of them without one."""
    from profkit.engine.registry import matches, rules

    every = rules()
    if word is None:
        return every
    chosen = tuple(rule for rule in every if matches(rule.INFO, word))
    if not chosen:
        known = [name for rule in every for name in (rule.INFO.id, rule.INFO.name)]
        message = f"No rule is called {word!r}.{did_you_mean(word, known)}"
        raise click.UsageError(f"{message} `profkit rules` lists them.")
    return chosen


def _needs(info: "RuleInfo") -> str:
    return ", ".join(sorted(need.name for need in info.needs))


def _card(rule: "Rule") -> dict[str, object]:
    info = rule.INFO
    return {
        "id": info.id,
        "name": info.name,
        "title": info.title,
        "severity": info.severity,
        "needs": sorted(need.name for need in info.needs),
        "since": info.since,
    }


def _table(rules: tuple["Rule", ...]) -> str:
    """Rules as a table, in as many columns as the terminal has; ids and names are never cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    look = layout()
    style = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    longest = max(len(rule.INFO.name) for rule in rules)
    room = look["width"] - sum((_ID_WIDTH, longest, _SEVERITY_WIDTH, 3 * 2))
    beside = room >= _SHORTEST_TITLE
    table.add_column("rule", no_wrap=True, min_width=_ID_WIDTH)
    table.add_column("name", no_wrap=beside, min_width=longest if beside else None, overflow="fold")
    if beside:
        table.add_column("severity", no_wrap=True, min_width=_SEVERITY_WIDTH)
        table.add_column("what it finds", width=room)
    for rule in rules:
        info = rule.INFO
        severity = Text(info.severity, style=style[info.severity])
        if beside:
            table.add_row(info.id, info.name, severity, info.title)
        else:
            table.add_row(info.id, f"{info.name}: {info.title} ({info.severity})")
    console = Console(
        file=io.StringIO(), width=look["width"], force_terminal=look["color"], markup=False,
        color_system="standard" if look["color"] else None, no_color=not look["color"],
        highlight=False, emoji=False, legacy_windows=False, force_jupyter=False,
    )  # fmt: skip
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]
    what = "profkit rules RULE shows a rule's page: why it matters, and how to fix it."
    return "\n".join((*lines, "", *textwrap.wrap(what, look["width"]))) + "\n"
