"""What changed between two recordings: as text, as Markdown, and as JSON."""

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec

from profkit.comparison.messages import (
    TITLES,
    amount,
    headline,
    label,
    share_of,
    signed,
    subject_of,
    where_of,
)
from profkit.model.difference import Change, Difference, Figure
from profkit.names import middle_cut, short_path, tail_cut, visible
from profkit.units import format_count

FORMATS: Final = ("json", "md", "text")

_SPECIAL: Final = re.compile(r"[\\`*_\[\]<>~&$@#|]")
_ASCII: Final = str.maketrans("→·…µ±", ">-~u~")
_NARROWEST: Final = 40
_WIDEST_PROSE: Final = 120
_FIGURES_SHOWN: Final = 9
_SHORTEST_PATH: Final = 12
_ROOM_BESIDE: Final = 34
"""What changed, and where, stand below by how much on a screen that is narrower."""
_GLUE: Final = "\ue000"
_FIGURE: Final = re.compile(r"(\d) ((?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b)")


@dataclass(frozen=True)
class Options:
    """How a difference is laid out.

    Attributes:
        width: Columns to fill.
        top: How many changes of each kind to show.
        verbose: Whether to show all of them, with their stacks.
        unicode: Whether the reader can show more than ASCII.
        base: An absolute folder; paths inside are shown relative to it.
    """

    width: int = 100
    top: int = 5
    verbose: bool = False
    unicode: bool = True
    base: str = ""


def shown(difference: Difference, name: str, options: dict[str, Any]) -> bytes:
    """A difference in one of :data:`FORMATS`.

    Args:
        name: The format's name.
        options: Values of :class:`Options`; others are passed over.
    """
    own = {field.name for field in fields(Options)}
    chosen = Options(**{name: value for name, value in options.items() if name in own})
    make: dict[str, Callable[[Difference, Options], bytes]] = {
        "json": _json, "md": _markdown, "text": _text,
    }  # fmt: skip
    return make[name](difference, chosen)


def _sides(difference: Difference, base: str) -> tuple[str, str]:
    return (
        visible(short_path(difference.before.path, base)) or "a report",
        visible(short_path(difference.after.path, base)) or "a report",
    )


def _text(difference: Difference, options: Options) -> bytes:
    width = max(_NARROWEST, options.width)
    before, after = _sides(difference, options.base)
    lines = [
        *_text_header(f"profkit {visible(difference.profkit)}", before, after, width),
        "",
        *_wrapped(headline(difference), width),
        *_text_figures(difference, options, width),
    ]
    for kind, title in TITLES:
        changes = difference.of_kind(kind)
        if changes:
            lines += ["", f"{title}: {format_count(len(changes))} changed"]
            lines += _text_changes(changes, options, width)
    if difference.not_compared:
        lines += ["", *_wrapped("Not compared: the rule could look on one side alone", width)]
        for each in difference.not_compared:
            text = f"  {visible(each.rule)} ({each.side}): {visible(each.reason)}"
            lines += _wrapped(text, width)
    lines += [""] if difference.notes else []
    for note in difference.notes:
        lines += _wrapped(visible(note), width)
    text = "\n".join(lines) + "\n"
    if options.unicode:
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode("ascii", "backslashreplace")


def _text_header(lead: str, before: str, after: str, width: int) -> list[str]:
    """What was compared: on one line where that fits, else each file on a line of its own."""
    line = f"{lead} · {before} → {after}"
    if len(line) <= width:
        return [line]
    room = width - len("  before: ")
    return [lead, f"  before: {tail_cut(before, room)}", f"  after:  {tail_cut(after, room)}"]


def _wrapped(text: str, width: int) -> list[str]:
    """A paragraph whose further lines are indented as its first, and a little more."""
    indent = text[: len(text) - len(text.lstrip())]
    widest = min(width, _WIDEST_PROSE)
    glued = _FIGURE.sub(rf"\1{_GLUE}\2", text)
    lines = textwrap.wrap(glued, widest, subsequent_indent=indent * 2)
    return [line.replace(_GLUE, " ") for line in lines] or [""]


def _text_figures(difference: Difference, options: Options, width: int) -> Iterator[str]:
    figures = _told(difference, options)
    if not figures:
        return
    rows = [("", "before", "after", "change", "")]
    rows += [
        (
            label(each),
            amount(each.before, each.unit) or "?",
            amount(each.after, each.unit) or "?",
            signed(each),
            share_of(each),
        )
        for each in figures
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    beside = sum(widths) + 5 * len("  ") <= width
    yield ""
    for named, *cells in rows:
        aligned = "  ".join(
            cell.rjust(longest) for cell, longest in zip(cells, widths[1:], strict=True)
        )
        if beside:
            yield f"  {named.ljust(widths[0])}  {aligned}".rstrip()
        else:
            yield from filter(str.strip, (f"  {named}", f"    {aligned.rstrip()}"))


def _told(difference: Difference, options: Options) -> Sequence[Figure]:
    return difference.figures if options.verbose else difference.figures[:_FIGURES_SHOWN]


def _text_changes(changes: Sequence[Change], options: Options, width: int) -> Iterator[str]:
    most = None if options.verbose else options.top
    told = changes[:most]
    delta_width = max(len(signed(each)) for each in told)
    for change in told:
        head = f"  {change.status:<8}  {signed(change).rjust(delta_width)}  "
        room = width - len(head)
        if room >= _ROOM_BESIDE:
            yield head + _subject_and_place(change, options.base, room)
        else:
            yield head.rstrip()
            yield f"    {_subject_and_place(change, options.base, width - 4)}"
        if options.verbose:
            for frame in change.stack:
                file = visible(short_path(frame.file, options.base))
                yield f"              {file}:{frame.line} in {visible(frame.function)}"
    if len(changes) > len(told):
        yield f"  … and {format_count(len(changes) - len(told))} more: --verbose shows all"


def _subject_and_place(change: Change, base: str, room: int) -> str:
    """What changed, and where: the place is cut last."""
    whole = where_of(change, base)
    subject = subject_of(change)
    if len(subject) + 2 + len(whole) > room:
        place = where_of(change, base, room // 2)
        subject = middle_cut(subject, max(_SHORTEST_PATH, room - len(place) - 2))
    place = where_of(change, base, max(_SHORTEST_PATH, room - len(subject) - 2))
    return f"{subject}  {place}".rstrip()


def _markdown(difference: Difference, options: Options) -> bytes:
    before, after = _sides(difference, options.base)
    blocks = [
        "# profkit diff",
        f"{_code(before)} to {_code(after)}",
        _escaped(headline(difference)),
    ]
    figures = [
        (
            _escaped(label(each)),
            amount(each.before, each.unit) or "?",
            amount(each.after, each.unit) or "?",
            f"{signed(each)} {share_of(each)}".strip(),
        )
        for each in _told(difference, options)
    ]
    if figures:
        blocks.append(_table(("figure", "before", "after", "change"), figures))
    most = None if options.verbose else options.top
    for kind, title in TITLES:
        changes = difference.of_kind(kind)
        if changes:
            rows = [
                (
                    each.status,
                    signed(each),
                    _code(where_of(each, options.base)),
                    _code(subject_of(each)),
                )
                for each in changes[:most]
            ]
            blocks += [f"## {title}", _table(("", "change", "where", "what"), rows)]
            hidden = len(changes) - len(rows)
            blocks += [f"… and {format_count(hidden)} more."] if hidden else []
    asides = [f"{each.rule} could look {each.side} alone: {each.reason}"
              for each in difference.not_compared]  # fmt: skip
    blocks += ["\n".join(f"- {_escaped(visible(each))}" for each in (*difference.notes, *asides))]
    return ("\n\n".join(block for block in blocks if block) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = {"before", "after", "change"}
    lines = [
        f"| {' | '.join(titles)} |",
        f"|{'|'.join('--:' if title in right else '---' for title in titles)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", visible(" ".join(text.split())))


def _code(text: str) -> str:
    """Text as code that no table, tag or backtick within can break."""
    plain = visible(" ".join(text.split()))
    if not plain:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", plain)), default=0) + 1)
    edge = " " if "`" in plain else ""
    return f"{fence}{edge}{plain}{edge}{fence}".replace("|", "\\|")


def _json(difference: Difference, options: Options) -> bytes:
    tree = msgspec.to_builtins(difference)
    try:
        text = msgspec.json.encode(tree)
    except UnicodeEncodeError:  # a path may hold bytes that are no Unicode
        text = msgspec.json.encode(_unicode(tree))
    return msgspec.json.format(text, indent=2) + b"\n"


def _unicode(tree: Any) -> Any:  # noqa: ANN401  (any part of a JSON tree)
    if isinstance(tree, str):
        return tree.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(tree, list | tuple):
        return [_unicode(item) for item in tree]
    if isinstance(tree, dict):
        return {_unicode(key): _unicode(tree[key]) for key in tree}
    return tree
