"""``profkit rules``: lists all rules, or shows one rule's page."""

import inspect
import json
import re
import textwrap
from typing import TYPE_CHECKING, Final

import click

from profkit.cli._options import add_text_or_json_option
from profkit.cli._output import layout, say
from profkit.names import did_you_mean
from profkit.patterns import regex

_CODE_MARK: Final = regex(r"^ *::\n\n?", re.MULTILINE)
"""reStructuredText's mark before code, which the indentation makes redundant."""
_SECTION: Final = regex(r"^\S.*:$", re.MULTILINE)

_ID_WIDTH: Final = len("SYN001")
_SEVERITY_WIDTH: Final = len("severity")
_SHORTEST_TITLE: Final = 24
"""With less space than this for titles, they are shown below the names."""

if TYPE_CHECKING:
    from profkit.engine.detector import Rule, RuleInfo


@click.command(
    short_help="List the rules, or show the page of one.",
    epilog="\b\nExamples:\n  profkit rules\n  profkit rules item-sync\n  profkit rules MEM",
)
@click.argument("rule", required=False)
@add_text_or_json_option
def command(rule: str | None, format_: str) -> int:
    """List the rules; with RULE, show its page: what it finds, why it matters, how to fix it.

    RULE is an id such as SYN001, a name such as item-sync, or a family such as SYN.
    """
    chosen = _choose_rules(rule)
    if format_ == "json":
        text = json.dumps([_card(match) for match in chosen], indent=2) + "\n"
    elif rule is not None and len(chosen) == 1:
        text = format_page(chosen[0], color=layout()["color"])
    else:
        text = _format_table(chosen)
    say(text)
    return 0


def format_page(rule: "Rule", *, color: bool = False) -> str:
    """Format a rule's page:  its metadata, and its docstring without markup.

    Args:
        color: Whether to print headings in bold.
    """
    info = rule.INFO
    head = f"{info.id} {info.name}: {info.title}"
    facts = f"{info.severity} · needs {_needs(info) or 'any recording'} · since {info.since}"
    text = inspect.cleandoc(rule.__doc__ or "").replace("``", "`")
    text = _CODE_MARK.sub("", text)
    # The docstring begins with the rule's id, as does the head of the page.
    if text.startswith(f"{info.id} "):
        text = text.partition("\n")[2].lstrip("\n")
    if color:
        head = click.style(head, bold=True)
        text = _SECTION.sub(lambda match: click.style(match.group(), bold=True), text)
    return f"{head}\n{facts}\n\n{text}\n"


def _choose_rules(name: str | None) -> tuple["Rule", ...]:
    """Choose the rules with this id, name or family; all rules for None."""
    from profkit.engine.registry import matches, rules

    all_rules = rules()
    if name is None:
        return all_rules
    chosen = tuple(rule for rule in all_rules if matches(rule.INFO, name))
    if not chosen:
        names = [word for rule in all_rules for word in (rule.INFO.id, rule.INFO.name)]
        message = f"There is no rule {name!r}.{did_you_mean(name, names)}"
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


def _format_table(rules: tuple["Rule", ...]) -> str:
    """Format a table in the width of the terminal; ids and names are never cut."""
    from rich.table import Table
    from rich.text import Text

    from profkit.renderers.text.tables import build_console

    target = layout()
    style = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    longest = max(len(rule.INFO.name) for rule in rules)
    title_width = target["width"] - sum((_ID_WIDTH, longest, _SEVERITY_WIDTH, 3 * 2))
    side_by_side = title_width >= _SHORTEST_TITLE

    table.add_column("rule", no_wrap=True, min_width=_ID_WIDTH)
    table.add_column(
        "name", no_wrap=side_by_side, min_width=longest if side_by_side else None, overflow="fold"
    )
    if side_by_side:
        table.add_column("severity", no_wrap=True, min_width=_SEVERITY_WIDTH)
        table.add_column("what it finds", width=title_width)
    for rule in rules:
        info = rule.INFO
        severity = Text(info.severity, style=style[info.severity])
        if side_by_side:
            table.add_row(info.id, info.name, severity, info.title)
        else:
            table.add_row(info.id, f"{info.name}: {info.title} ({info.severity})")

    # Rich lays out the table; its own output to the terminal would ignore --format and pipes.
    console = build_console(target["width"], color=target["color"])
    with console.capture() as captured:
        console.print(table)

    lines = [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]
    footer = "profkit rules RULE shows a rule's page: why it matters, and how to fix it."
    return "\n".join((*lines, "", *textwrap.wrap(footer, target["width"]))) + "\n"
