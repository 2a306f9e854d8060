"""Writes ``docs/reference/``, the glossary and the README's picture: what the code says of itself.

The pages of the rules come from their docstrings, the commands from their ``--help``, the layout
of the JSON report from the dataclasses, the Python names from their signatures and docstrings.

Run: ``python docs/generate.py`` writes them; with ``--check`` it says which differ from the code.
"""

import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

import profkit
from profkit.cli.main import group
from profkit.engine.registry import rules
from profkit.model.difference import Difference
from profkit.model.report import Report
from profkit.present.glossary import GLOSSARY, Term
from profkit.present.renderer import renderers

if typing.TYPE_CHECKING:
    from profkit.engine.detector import Rule

REFERENCE: Final = Path(__file__).parent / "reference"
README: Final = Path(__file__).parents[1] / "README.md"
GLOSSARY_PAGE: Final = Path(__file__).parent / "glossary.md"
SHOWN: Final = "starved_loader"
SHOWN_WIDTH: Final = 90
FAMILIES: Final = {
    "SYN": "host and device waiting for each other",
    "DAT": "input and copies",
    "KER": "kernels",
    "MEM": "memory",
    "COM": "collectives and ranks",
    "CMP": "compilation and graphs",
    "CFG": "settings",
    "PRF": "faults of the recording itself",
}
_SECTION: Final = re.compile(r"^(\S[^\n]*)\n(?=    )", re.MULTILINE)
_CODE: Final = re.compile(
    r"^( *)(?:\.\. code-block:: *(\w+)|::)\n\n((?:\1 +[^\n]*\n|\n)+)", re.MULTILINE
)
_FIELD: Final = re.compile(r"^    (\w+): ", re.MULTILINE)
_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")
_REPORT: Final = (
    "`profkit analyze FILE --format json` prints it; its JSON Schema is "
    "`profkit/renderers/report.schema.json`. Times are integer nanoseconds, sizes integer bytes, "
    "shares from 0 to 1; a figure that is not known is null."
)
_DIFFERENCE: Final = (
    "`profkit diff BEFORE AFTER --format json` prints it. Times are integer nanoseconds, sizes "
    "integer bytes; a figure that is not known is null."
)
_HELP_WIDTH: Final = 88
_PAGE_WIDTH: Final = 100
_NOTE: Final = "<!-- Written by docs/generate.py from the code: change it there. -->\n\n"


def pages() -> dict[str, str]:
    """Every page of the reference: its path below ``docs/reference``, and its text."""
    every = {f"rules/{rule.INFO.id}-{rule.INFO.name}.md": rule_page(rule) for rule in rules()}
    every["rules/README.md"] = catalogue()
    every["commands.md"] = commands()
    every["report.md"] = report_layout()
    every["difference.md"] = difference_layout()
    every["python.md"] = python_names()
    return {path: _NOTE + text.rstrip() + "\n" for path, text in every.items()}


def markdown(docstring: str | None) -> str:
    """A docstring as Markdown: code blocks fenced, double backticks single, roles plain."""
    text = (docstring or "").strip() + "\n"
    text = _CODE.sub(_fenced, text)
    text = _ROLE.sub(r"`\1`", text)
    return text.replace("``", "`").replace("````", "```").strip()


def _fenced(block: "re.Match[str]") -> str:
    fence = "`" * 6  # three are left when double backticks become single ones
    code = textwrap.dedent(block[3]).strip("\n")
    return f"{fence}{block[2] or 'python'}\n{code}\n{fence}\n"


def rule_page(rule: "Rule") -> str:
    """A rule's page: its docstring by section, and its thresholds."""
    info = rule.INFO
    needs = ", ".join(need.name for need in info.needs)
    facts = f"`{info.id}` · {info.severity} · needs {needs} · since {info.since}"
    heading, *sections = _SECTION.split(inspect.cleandoc(rule.__doc__ or "") + "\n")
    _, _, summary = heading.strip().partition(": ")
    parts = [f"# {info.name}: {info.title}", facts, markdown(summary).capitalize()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"## {title.strip().rstrip(':')}\n\n{markdown(textwrap.dedent(body))}")
    parts.append("## Thresholds\n\n" + "\n".join(_thresholds(rule.Thresholds)))
    return "\n\n".join(parts)


def _thresholds(kind: type[Any]) -> Iterator[str]:
    reasons = attributes(kind)
    if not dataclasses.fields(kind):
        yield "None: it needs no limit."
    for field in dataclasses.fields(kind):
        yield f"- `{field.name}` = {field.default}: {reasons.get(field.name, '')}"


def attributes(kind: type[Any]) -> dict[str, str]:
    """What a dataclass's docstring says of each field, under ``Attributes:``."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    _, *found = _FIELD.split(section)
    return {
        name: " ".join(markdown(textwrap.dedent(text)).split())
        for name, text in zip(found[::2], found[1::2], strict=True)
    }


def catalogue() -> str:
    """The table of all rules, by family."""
    parts = ["# Rules", "`profkit rules` lists them, `profkit rules ID` shows one's page."]
    for family, subject in FAMILIES.items():
        members = [rule.INFO for rule in rules() if rule.INFO.id.startswith(family)]
        if members:
            rows = (
                f"| [{info.id}]({info.id}-{info.name}.md) | {info.name} | {info.title} | "
                f"{info.severity} |"
                for info in members
            )
            head = "| Id | Name | What it finds | Severity |\n|---|---|---|---|"
            parts.append(f"## {family}: {subject}\n\n" + "\n".join((head, *rows)))
    return "\n\n".join(parts)


def glossary() -> str:
    """The page of the glossary: each term, its definition, and the synonyms that are not used."""
    terms = (
        textwrap.fill(
            f"- **{name}**: {term.definition}{_not_used(term)}",
            _PAGE_WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for name, term in GLOSSARY.items()
    )
    head = "The same term for the same concept in the code, the reports and these pages."
    return f"{_NOTE}# Glossary\n\n{head}\n\n" + "\n".join(terms) + "\n"


def _not_used(term: Term) -> str:
    """The synonyms of a term that are names and no parts of phrases."""
    names = [word for word in term.not_used if " " not in word]
    return f" Not used: {', '.join(names)}." if names else ""


def commands() -> str:
    """The ``--help`` of every command, and the exit codes."""
    parts = ["# Commands", *_helps(group, "profkit"), "## Exit codes"]
    codes = {
        0: "it ran, and no finding is as severe as `--fail-on`",
        1: "a finding is at least as severe as `--fail-on`",
        2: "an argument cannot be used",
        3: "a file cannot be read",
        4: "recording is not possible",
        5: "a result cannot be written",
        6: "a plugin is wrong",
        70: "a bug in profkit",
    }
    parts.append("\n".join(f"- {code}: {meaning}" for code, meaning in codes.items()))
    parts.append("`profkit run` ends with the exit code of the program that it ran.")
    return "\n\n".join(parts)


def _helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(
        command, parent, info_name=name, terminal_width=_HELP_WIDTH, max_content_width=_HELP_WIDTH
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context).strip()}\n```"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _helps(found, child, context)


def report_layout() -> str:
    """The JSON report, one table a dataclass, in the order in which they are met."""
    shown = [module.INFO.name for module in renderers() if module.INFO.shows == "report"]
    formats = ", ".join(f"`{name}`" for name in shown)
    parts = [
        "# The JSON report",
        _REPORT,
        f"The formats of a report are {formats}.",
    ]
    parts += _layouts(Report)
    return "\n\n".join(parts)


def difference_layout() -> str:
    """The JSON of a difference, likewise; what a report is made of is on its own page."""
    own = _layouts(Difference, known=tuple(_met(Report)))
    return "\n\n".join(["# The JSON difference", _DIFFERENCE, *own])


def _met(root: type[Any]) -> Iterator[type[Any]]:
    """A dataclass and all that it is made of, in the order in which they are met."""
    waiting = [root]
    for kind in waiting:
        yield kind
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            waiting += [part for part in _dataclasses_in(hints[field.name]) if part not in waiting]


def _layouts(root: type[Any], known: tuple[type[Any], ...] = ()) -> list[str]:
    """One table a dataclass, without those that another page has."""
    parts = []
    for kind in _met(root):
        if kind in known:
            continue
        hints = typing.get_type_hints(kind)
        said = attributes(kind)
        parts.append(f"## {kind.__name__}\n\n" + "| Field | Type | Meaning |\n|---|---|---|")
        for field in dataclasses.fields(kind):
            if field.name == "claims":
                continue
            shown = _type_text(hints[field.name], known)
            parts[-1] += f"\n| `{field.name}` | {shown} | {said.get(field.name, '')} |"
    return parts


def _dataclasses_in(hint: Any) -> Iterator[type[Any]]:  # noqa: ANN401  (a type hint of any form)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for argument in typing.get_args(hint):
        yield from _dataclasses_in(argument)


def _type_text(hint: Any, elsewhere: tuple[type[Any], ...] = ()) -> str:  # noqa: ANN401  (a type hint of any form)
    """A type hint in the words of JSON; dataclasses ``elsewhere`` are on the report's page."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    inner = [_type_text(each, elsewhere) for each in arguments if each is not Ellipsis]
    if origin in (types.UnionType, typing.Union):
        return " or ".join(inner)
    if origin is tuple or origin is list:
        return f"[{inner[0]}…]" if len(arguments) == 1 or Ellipsis in arguments else str(inner)
    if origin is not None:
        return f"{{{', '.join(inner)}}}"
    if hint is type(None):
        return "null"
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    page = "report.md" if hint in elsewhere else ""
    return names.get(hint) or f"[{hint.__name__}]({page}#{hint.__name__.lower()})"


def python_names() -> str:
    """The public names of the package, with their signatures and docstrings."""
    parts = ["# Python"]
    for name in sorted(profkit.__all__):
        if name.startswith("__"):
            continue
        value = getattr(import_module(profkit._HOMES[name]), name)  # noqa: SLF001  (not the room of the same name)
        signature = "" if inspect.isclass(value) else _bare_signature(value)
        parts.append(f"## profkit.{name}\n\n```python\nprofkit.{name}{signature}\n```")
        parts.append(_listed(markdown(inspect.getdoc(value))))
    return "\n\n".join(parts)


def _bare_signature(function: Callable[..., object]) -> str:
    """A function's parameters and their defaults; types are spelled anew by each Python."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _listed(text: str) -> str:
    """A docstring's ``Args:`` and ``Raises:`` as bold headings over lists."""
    blocks = re.split(r"^(Args|Attributes|Raises|Returns|Yields):\n", text, flags=re.MULTILINE)
    shown = [blocks[0].strip()]
    for title, body in zip(blocks[1::2], blocks[2::2], strict=True):
        entries = re.split(r"\n(?=\S)", textwrap.dedent(body).strip())
        lines = [
            re.sub(r"^(\*{0,2}\w+): ", r"- `\1`: ", " ".join(entry.split())) for entry in entries
        ]
        shown.append(f"**{title}**\n\n" + "\n".join(lines))
    return "\n\n".join(shown)


def readme() -> str:
    """The README with the head of a real report in its first block.

    The report is that of a recorded trace, up to the end of what it says should change.
    """
    (trace,) = (README.parent / "traces" / SHOWN).glob("*.pt.trace.json.gz")
    text = profkit.render(profkit.analyze(trace), "text", width=SHOWN_WIDTH).decode()
    report = text[text.index("Each step takes") : text.index("\nOperators ")].rstrip()
    block = f"```text\n$ profkit run examples/{SHOWN}.py\n\n{report}\n```"
    written = README.read_text(encoding="utf-8")
    return re.sub(r"(?ms)^```text\n.*?^```$", lambda _: block, written, count=1)


def stale() -> list[str]:
    """The pages, the README and the glossary, that differ from what would be written now."""
    wanted = {REFERENCE / path: text for path, text in pages().items()}
    wanted |= {README: readme(), GLOSSARY_PAGE: glossary()}
    there = {*REFERENCE.rglob("*.md"), README, GLOSSARY_PAGE}
    return sorted(
        path.name
        for path in wanted.keys() | there
        if path not in there or path.read_text(encoding="utf-8") != wanted.get(path)
    )


def main() -> int:
    """Write the README's block, the glossary and every page; remove pages that are made no more.

    Returns:
        1 if ``--check`` was given, and a page differs from the code; else 0.
    """
    if "--check" in sys.argv[1:]:
        differing = stale()
        print("\n".join([*differing, "`make docs` writes them anew"] if differing else ["in step"]))
        return int(bool(differing))
    README.write_text(readme(), encoding="utf-8")
    GLOSSARY_PAGE.write_text(glossary(), encoding="utf-8")
    wanted = pages()
    for left in REFERENCE.rglob("*.md"):
        if left.relative_to(REFERENCE).as_posix() not in wanted:
            left.unlink()
    for path, text in wanted.items():
        target = REFERENCE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    print(f"{len(wanted)} pages in {REFERENCE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
