"""What changed between two recordings: as text, as Markdown, and as JSON."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec

from profkit.model.difference import Change, ChangeKind, Difference, Figure, Unit
from profkit.names import middle_cut, short_kernel, short_path, visible
from profkit.units import format_bytes, format_count, format_ns, format_share

FORMATS: Final = ("json", "md", "text")

_TITLES: Final[tuple[tuple[ChangeKind, str], ...]] = (
    ("memory", "Memory that stands, by stack"),
    ("finding", "Findings"),
    ("kernel", "Kernels"),
    ("operator", "Operators"),
)
_LABELS: Final = {
    "host_rss": "host memory", "tensor": "live tensors", "graph": "autograd graphs",
    "window": "whole recording", "memcpy": "copies",
}  # fmt: skip
_SPECIAL: Final = re.compile(r"[\\`*_\[\]<>~&$@#|]")
_ASCII: Final = str.maketrans("→·…µ±", ">-~u~")
_NARROWEST: Final = 40
_FIGURES_SHOWN: Final = 9
_WORTH_SAYING_SHARE: Final = 0.01
_MANIFOLD: Final = 10
"""From so many times on a share says nothing that the two figures do not say."""
_SHORTEST_PATH: Final = 12
_NO_STACK: Final = "no stack kept"


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
        difference: What changed.
        name: The format's name.
        options: Values of :class:`Options`; others are passed over.
    """
    own = {field.name for field in fields(Options)}
    chosen = Options(**{name: value for name, value in options.items() if name in own})
    make: dict[str, Callable[[Difference, Options], bytes]] = {
        "json": _json, "md": _markdown, "text": _text,
    }  # fmt: skip
    return make[name](difference, chosen)


def headline(difference: Difference) -> str:
    """What the difference comes down to, in a sentence or two.

    Args:
        difference: What changed.
    """
    by_name = {figure.name: figure for figure in reversed(difference.figures)}
    sentences = []
    if "step_ns" in by_name:
        sentences.append(_compared("A step takes", by_name["step_ns"]))
    elif "window_ns" in by_name:
        sentences.append(_compared("The recording takes", by_name["window_ns"]))
    elif "active_bytes" in by_name:
        every = [figure for figure in difference.figures if figure.name == "active_bytes"]
        most = max(every, key=lambda figure: abs(figure.delta or 0))
        sentences.append(_compared(f"Active memory on {visible(most.device or '')} is", most))
        sentences += _largest(difference)
    elif "host_rss_bytes" in by_name:
        sentences.append(_compared("Host memory in the end is", by_name["host_rss_bytes"]))
    findings = difference.of_kind("finding")
    counts = [
        f"{format_count(n)} {what}"
        for what in ("appeared", "went", "grew", "shrank")
        if (n := sum(change.what == what for change in findings))
    ]
    if counts:
        sentences.append(f"Findings: {', '.join(counts)}.")
    return " ".join(sentences) or "Nothing can be compared."


def _compared(what: str, figure: Figure) -> str:
    before, after, delta = figure.before, figure.after, figure.delta
    if before is None or after is None or delta is None:
        known = before if after is None else after
        return f"{what} {_amount(known, figure.unit)} on one side; the other does not tell."
    if abs(delta) <= _WORTH_SAYING_SHARE * max(before, after):
        return f"{what} {_amount(after, figure.unit)}, as before."
    told = before and abs(delta) < _MANIFOLD * before
    share = f" ({format_share(abs(delta) / before)})" if told else ""
    word = "more" if delta > 0 else "less"
    return (
        f"{what} {_amount(after, figure.unit)} instead of {_amount(before, figure.unit)}: "
        f"{_amount(abs(delta), figure.unit)}{share} {word}."
    )


def _largest(difference: Difference) -> Iterator[str]:
    """What the largest change of memory is, where a line is known."""
    for change in difference.of_kind("memory")[:1]:
        if change.location is not None and change.location.file is not None:
            what = "The largest change is at"
            yield f"{what} {visible(change.location.place)}: {_signed(change)}."


def _amount(value: int | None, unit: Unit | None) -> str:
    if value is None or unit is None:
        return ""
    texts: dict[Unit, Callable[[int], str]] = {
        "ns": format_ns, "bytes": format_bytes, "count": format_count,
    }  # fmt: skip
    return texts[unit](value)


def _signed(change: Change | Figure) -> str:
    if change.unit is None or change.delta is None:
        return ""
    sign = "+" if change.delta > 0 else "-" if change.delta < 0 else "±"
    each = " a step" if isinstance(change, Change) and change.per_step else ""
    return f"{sign}{_amount(abs(change.delta), change.unit)}{each}"


def _label(figure: Figure) -> str:
    """``busy_ns_per_step`` of ``cuda:0`` as ``cuda:0 busy a step``."""
    name = figure.name.removesuffix("_per_step")
    each = " a step" if name != figure.name else ""
    plain = re.sub(r"_(ns|bytes)$", "", name).removeprefix("n_")
    words = _LABELS.get(plain, plain.replace("_", " ")) + each
    return f"{visible(figure.device)} {words}" if figure.device else words


def _share(figure: Figure) -> str:
    if not figure.delta or not figure.before:
        return ""
    share = figure.delta / figure.before
    return f"{'+' if share > 0 else '-'}{format_share(abs(share))}" if share < _MANIFOLD else ""


def _where(change: Change, base: str, room: int | None = None) -> str:
    """Where it is, and where it was if its line has moved.

    Args:
        change: The change.
        base: An absolute folder.
        room: Characters that it may take; the path gives way first.
    """
    where = change.location
    if where is None or where.file is None or where.line is None:
        place = visible(where.op or "") if where else ""
        return place or (_NO_STACK if change.kind == "memory" else "")
    path, rest = visible(short_path(where.file, base)), f":{where.line}"
    if where.function:
        rest += f" in {visible(where.function)}"
    if change.before_line is not None:
        rest += f", before line {change.before_line}"
    if room is not None:
        path = middle_cut(path, max(_SHORTEST_PATH, room - len(rest)))
    return path + rest if room is None else middle_cut(path + rest, max(_SHORTEST_PATH, room))


def _subject(change: Change) -> str:
    """What it is, beside where: a rule, a kernel, some blocks of a device."""
    if change.kind == "kernel":
        return short_kernel(visible(change.name), 60)
    if change.kind != "memory":
        return visible(change.name)
    blocks = format_count(change.n_after)
    if change.what == "went":
        blocks = format_count(change.n_before)
    elif change.what != "appeared" and change.n_before != change.n_after:
        blocks = f"{format_count(change.n_before)} to {format_count(change.n_after)}"
    return f"{blocks} block{'s' if blocks != '1' else ''} on {visible(change.device or '')}"


def _sides(difference: Difference, base: str) -> tuple[str, str]:
    return (
        visible(short_path(difference.before.path, base)) or "a report",
        visible(short_path(difference.after.path, base)) or "a report",
    )


def _text(difference: Difference, options: Options) -> bytes:
    width = max(_NARROWEST, options.width)
    before, after = _sides(difference, options.base)
    room = max(10, (width - 20) // 2)
    names = f"{middle_cut(before, room)} → {middle_cut(after, room)}"
    lines = [
        f"profkit {visible(difference.profkit)} · {names}",
        "",
        headline(difference),
        *_text_figures(difference, options),
    ]
    for kind, title in _TITLES:
        changes = difference.of_kind(kind)
        if changes:
            lines += ["", f"{title}: {format_count(len(changes))} changed"]
            lines += _text_changes(changes, options, width)
    if difference.one_sided:
        lines += ["", "Not compared: the rule could look on one side alone"]
        lines += [f"  {visible(each.rule)} ({each.side}): {visible(each.reason)}"
                  for each in difference.one_sided]  # fmt: skip
    lines += ["", *(visible(note) for note in difference.notes)] if difference.notes else []
    text = "\n".join(lines) + "\n"
    if options.unicode:
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode("ascii", "backslashreplace")


def _text_figures(difference: Difference, options: Options) -> Iterator[str]:
    figures = _told(difference, options)
    if not figures:
        return
    rows = [("", "before", "after", "change", "")]
    rows += [
        (
            _label(each),
            _amount(each.before, each.unit) or "?",
            _amount(each.after, each.unit) or "?",
            _signed(each),
            _share(each),
        )
        for each in figures
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    yield ""
    for label, *cells in rows:
        aligned = "  ".join(
            cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)
        )
        yield f"  {label.ljust(widths[0])}  {aligned}".rstrip()


def _told(difference: Difference, options: Options) -> Sequence[Figure]:
    return difference.figures if options.verbose else difference.figures[:_FIGURES_SHOWN]


def _text_changes(changes: Sequence[Change], options: Options, width: int) -> Iterator[str]:
    most = None if options.verbose else options.top
    told = changes[:most]
    delta_width = max(len(_signed(each)) for each in told)
    for change in told:
        head = f"  {change.what:<8}  {_signed(change).rjust(delta_width)}  "
        subject = middle_cut(_subject(change), max(_SHORTEST_PATH, (width - len(head)) * 2 // 3))
        room = width - len(head) - len(subject) - 2
        yield f"{head}{subject}  {_where(change, options.base, room)}".rstrip()
        if options.verbose:
            for frame in change.stack:
                file = visible(short_path(frame.file, options.base))
                yield f"              {file}:{frame.line} in {visible(frame.function)}"
    if len(changes) > len(told):
        yield f"  … and {format_count(len(changes) - len(told))} more: --verbose shows all"


def _markdown(difference: Difference, options: Options) -> bytes:
    before, after = _sides(difference, options.base)
    blocks = [
        "# profkit diff",
        f"{_code(before)} to {_code(after)}",
        _escaped(headline(difference)),
    ]
    figures = [
        (
            _escaped(_label(each)),
            _amount(each.before, each.unit) or "?",
            _amount(each.after, each.unit) or "?",
            f"{_signed(each)} {_share(each)}".strip(),
        )
        for each in _told(difference, options)
    ]
    if figures:
        blocks.append(_table(("figure", "before", "after", "change"), figures))
    most = None if options.verbose else options.top
    for kind, title in _TITLES:
        changes = difference.of_kind(kind)
        if changes:
            rows = [
                (
                    each.what,
                    _signed(each),
                    _code(_where(each, options.base)),
                    _code(_subject(each)),
                )
                for each in changes[:most]
            ]
            blocks += [f"## {title}", _table(("", "change", "where", "what"), rows)]
            hidden = len(changes) - len(rows)
            blocks += [f"… and {format_count(hidden)} more."] if hidden else []
    asides = [f"{each.rule} could look {each.side} alone: {each.reason}"
              for each in difference.one_sided]  # fmt: skip
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
