"""The report as GitHub-flavoured Markdown: for a pull request, an issue, or a lab book.

What to change stands open; tables and lists below it are folded and open with a click. Unless all
of it is asked for, the text fits into a comment on GitHub.

Source: GitHub refuses a comment of more than 65,536 characters ("body is too long").
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.names import short_kernel, short_path, visible
from profkit.present.headline import (
    breakdown_title,
    busiest_ops,
    cost_text,
    facts,
    headline,
    origin,
    overhead_text,
    part_label,
    unchecked_by_reason,
)
from profkit.present.memory_text import (
    MemorySeriesRow,
    allocation_tables,
    device_series_rows,
    not_measured,
    place_of,
    series_rows,
    shows_series,
    use_of,
)
from profkit.present.renderer import ReadersOptions as Options
from profkit.present.renderer import RendererInfo
from profkit.units import format_bytes, format_count, format_ns, format_share

__all__ = ["INFO", "Options", "render"]

INFO = RendererInfo(name="md", suffix=".md", media_type="text/markdown")

_SPECIAL: Final = re.compile(r"[\\`*\[\]<>~&$@#]|(?<![^\W_])_|_(?![^\W_])")
_LONGEST_NAME: Final = 80
_BAR: Final = 20
_LONGEST_COMMENT: Final = 65_536
_LEFT_OUT: Final = "… and what does not fit into a comment is left out."


def render(report: Report, options: Options) -> bytes:
    """The report as Markdown in UTF-8.

    Args:
        options: What to show.
    """
    most = options.most
    blocks = [
        "# profkit report",
        _prose(headline(report)),
        *_time(report),
        *_findings(report, options, most),
        *_memory(report, options, most),
        *_tables(report, options, most),
        *_list("Counted", facts(report, everything=options.verbose)),
        *_not_checked(report, options),
        *_list("The recording", _recording(report), opens=_is_troubled(report)),
    ]
    last = _origin(report, options)
    blocks = [*(blocks if options.verbose else _fitting(blocks, len(last))), last]
    return ("\n\n".join(blocks) + "\n").encode("utf-8", "backslashreplace")


def _fitting(blocks: list[str], n_taken: int) -> list[str]:
    """As many blocks as a comment has room for, those before others; it is said if some are not.

    Args:
        blocks: The blocks, each of which is shown whole or not at all.
        n_taken: How many characters are taken already.
    """
    gap = len("\n\n")
    room = _LONGEST_COMMENT - n_taken - len(_LEFT_OUT) - 2 * gap
    kept = []
    for block in blocks:
        if len(block) + gap <= room:
            kept.append(block)
            room -= len(block) + gap
    return kept if len(kept) == len(blocks) else [*kept, _LEFT_OUT]


def _folded(title: str, body: str, *, opens: bool = False) -> str:
    """A part that opens with a click; what must not be missed is open already."""
    return (
        f"<details{' open' if opens else ''}>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
    )


def _time(report: Report) -> Iterator[str]:
    breakdown = report.summary.breakdown
    if breakdown is None or not breakdown.total_ns:
        return
    total = breakdown.per_step_ns if breakdown.per_step_ns is not None else breakdown.total_ns
    yield f"## {breakdown_title(report)}: {format_ns(total)}"
    rows = [
        (
            part_label(part.kind),
            format_ns(part.ns if part.per_step_ns is None else part.per_step_ns),
            format_share(part.share),
            "█" * round(part.share * _BAR),
        )
        for part in breakdown.parts
    ]
    yield _table(("part", "time", "share", ""), rows)


def _findings(report: Report, options: Options, most: int | None) -> Iterator[str]:
    if not report.findings:
        return
    yield f"## What to change: {format_count(len(report.findings))} found, most costly first"
    for number, finding in enumerate(report.findings[:most], start=1):
        yield _finding(report, number, finding, options.base)
    hidden = 0 if most is None else len(report.findings) - most
    if hidden > 0:
        yield f"… and {format_count(hidden)} more."


def _finding(report: Report, number: int, finding: Finding, base: str) -> str:
    holder = "".join(finding.holders[0]) if finding.holders else ""
    where = _place(finding.locations[0], base) if finding.locations else _code(holder)
    cost = cost_text(report, finding)
    head = " · ".join(
        part
        for part in (
            f"**{where or 'no line known'}**",
            f"{finding.severity} {_prose(finding.name)} ({_prose(finding.rule)})",
            f"**{cost}**" if cost else "",
            "" if finding.confidence == "high" else f"{finding.confidence} confidence",
        )
        if part
    )
    lines = [f"{number}. {head}", _prose(finding.message)]
    if finding.fix:
        lines.append(f"*Fix:* {_prose(finding.fix)}")
    if finding.holders:
        held = (_code("".join(chain)) for chain in finding.holders)
        lines.append(f"*Held by:* {', and by '.join(held)}")
    others = [place for place in (_place(each, base) for each in finding.locations[1:]) if place]
    if others:
        lines.append(f"*Also at:* {', '.join(others)}")
    return "\n\n   ".join(lines)


def _place(where: Location, base: str) -> str:
    if where.file is None or where.line is None:
        return _code(where.op) if where.op else ""
    place = _code(f"{short_path(where.file, base)}:{where.line}")
    if where.precision == "function" and where.function:
        return f"{_code(where.function)} in {place}"
    return place


def _line(where: Location | None, base: str) -> str:
    return _place(where, base) if where is not None and where.line is not None else ""


def _tables(report: Report, options: Options, most: int | None) -> Iterator[str]:
    kernels = [
        (
            _code(short_kernel(kernel.name, _LONGEST_NAME)),
            format_count(kernel.n_calls),
            format_ns(kernel.total_ns),
            format_share(kernel.share),
            _code(kernel.op) if kernel.op else "",
            _line(kernel.location, options.base),
        )
        for kernel in report.summary.top_kernels[:most]
    ]
    if kernels:
        head = ("kernel", "calls", "total", "share", "operator", "line")
        yield _folded("Kernels", _table(head, kernels))
    operators = [
        (
            _code(op.name),
            format_count(op.n_calls),
            format_ns(op.total_ns),
            format_ns(op.self_ns),
            format_ns(op.device_ns),
            _line(op.location, options.base),
        )
        for op in busiest_ops(report)[1][:most]
    ]
    if operators:
        head = ("operator", "calls", "total", "self", "on device", "line")
        yield _folded("Operators", _table(head, operators))


def _memory(report: Report, options: Options, most: int | None) -> Iterator[str]:
    if shows_series(report):
        yield from _courses("Memory by step", series_rows(report))
    yield from _courses("Memory over the history", device_series_rows(report))
    for each in allocation_tables(report, everything=options.verbose):
        yield f"## {_prose(each.title)}: {format_bytes(each.total_bytes)}"
        found = [
            (
                _line(site.location, options.base) or _prose(place_of(site)),
                format_count(site.n),
                format_bytes(site.bytes),
                format_share(each.share(site)),
                _prose(use_of(site)),
            )
            for site in each.sites[:most]
        ]
        yield _table(("allocated at", "blocks", "bytes", "share", "used for"), found)


def _courses(title: str, every: list[MemorySeriesRow]) -> Iterator[str]:
    if not every:
        return
    yield f"## {title}"
    rows = [
        (
            _prose(course.name),
            format_bytes(course.first_bytes),
            format_bytes(course.last_bytes),
            format_bytes(course.highest_bytes),
            course.drawn(_BAR),
        )
        for course in every
    ]
    yield _table(("memory", "first", "last", "highest", "course"), rows)


def _recording(report: Report) -> Iterator[str]:
    for fault in report.health:
        yield f"{fault.severity} {fault.rule}: {fault.message} {fault.fix}"
    stretch = report.source.overhead_ratio
    if stretch is not None:
        yield overhead_text(stretch)
    yield from not_measured(report)


def _origin(report: Report, options: Options) -> str:
    file = report.source.path
    words = [f"profkit {_prose(report.profkit)}"]
    words += [_code(short_path(file, options.base))] if file else []
    words += [_prose(word) for word in origin(report)]
    return f"<sub>{' · '.join(words)}</sub>"


def _not_checked(report: Report, options: Options) -> Iterator[str]:
    n_rules = len({each.rule for each in report.unchecked})
    rules = f"{format_count(n_rules)} {'rule' if n_rules == 1 else 'rules'}"
    reasons = unchecked_by_reason(report, everything=options.verbose)
    yield from _list(f"Not checked: {rules}", (f"{reason} ({ids})" for reason, ids in reasons))


def _is_troubled(report: Report) -> bool:
    """Whether the recording has a fault that its reader must know of."""
    return any(fault.severity != "note" for fault in report.health)


def _list(title: str, items: Iterable[str], *, opens: bool = False) -> Iterator[str]:
    listed = [f"- {_prose(item)}" for item in items]
    if listed:
        yield _folded(title, "\n".join(listed), opens=opens)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are Markdown already; figures stand to the right."""
    bar = "\\|"
    right = {
        "time", "share", "calls", "total", "self", "on device",
        "first", "last", "highest", "blocks", "bytes",
    }  # fmt: skip
    lines = [
        f"| {' | '.join(titles)} |",
        f"|{'|'.join('--:' if title in right else '---' for title in titles)}|",
        *(f"| {' | '.join(cell.replace('|', bar) for cell in row)} |" for row in rows),
    ]
    return "\n".join(lines)


def _prose(text: str) -> str:
    """Text that Markdown and HTML take as it is; code between backticks stays code."""
    parts = visible(" ".join(text.split())).split("`")
    if len(parts) % 2 == 0:
        return _escaped("`".join(parts))
    return "".join(
        _escaped(part) if place % 2 == 0 else _code(part) for place, part in enumerate(parts)
    )


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", text)


def _code(text: str) -> str:
    """Text as code that no table, tag or backtick within can break."""
    shown = visible(" ".join(text.split()))
    if not shown:
        return ""
    fence = "`" * (max((len(run) for run in re.findall(r"`+", shown)), default=0) + 1)
    edge = " " if "`" in shown else ""
    return f"{fence}{edge}{shown}{edge}{fence}"
