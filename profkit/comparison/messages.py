"""What changed between two recordings, in words and figures that every format of it shows."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from profkit.model.difference import Change, ChangeKind, Difference, Figure, Unit
from profkit.names import short_kernel, visible
from profkit.units import format_bytes, format_count, format_ns, format_share

TITLES: Final[tuple[tuple[ChangeKind, str], ...]] = (
    ("memory", "Memory that stands, by stack"),
    ("finding", "Findings"),
    ("kernel", "Kernels"),
    ("operator", "Operators"),
)
_LABELS: Final = {
    "host_rss": "host memory", "tensor": "live tensors", "graph": "autograd graphs",
    "window": "whole recording", "memcpy": "copies", "n_memcpy": "count of copies",
}  # fmt: skip
_WORTH_SAYING_SHARE: Final = 0.01
_MANIFOLD: Final = 10
"""From so many times on a share says nothing that the two figures do not say."""


def headline(difference: Difference) -> str:
    """What the difference comes down to, in a sentence or two."""
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
        for what in ("new", "fixed", "worse", "better")
        if (n := sum(change.status == what for change in findings))
    ]
    if counts:
        sentences.append(f"Findings: {', '.join(counts)}.")
    return " ".join(sentences) or "Nothing can be compared."


def _compared(what: str, figure: Figure) -> str:
    before, after, delta = figure.before, figure.after, figure.delta
    if before is None or after is None or delta is None:
        known = before if after is None else after
        return f"{what} {amount(known, figure.unit)} on one side; the other does not tell."
    if abs(delta) <= _WORTH_SAYING_SHARE * max(before, after):
        return f"{what} {amount(after, figure.unit)}, as before."
    told = before and abs(delta) < _MANIFOLD * before
    share = f" ({format_share(abs(delta) / before)})" if told else ""
    word = "more" if delta > 0 else "less"
    return (
        f"{what} {amount(after, figure.unit)} instead of {amount(before, figure.unit)}: "
        f"{amount(abs(delta), figure.unit)}{share} {word}."
    )


def _largest(difference: Difference) -> Iterator[str]:
    """What the largest change of memory is, where a line is known."""
    for change in difference.of_kind("memory")[:1]:
        if change.location is not None and change.location.file is not None:
            what = "The largest change is at"
            yield f"{what} {visible(change.location.place)}: {signed(change)}."


def amount(value: int | None, unit: Unit | None) -> str:
    """A figure with its unit; empty where it is not known.

    Args:
        value: The figure.
        unit: What it counts.
    """
    if value is None or unit is None:
        return ""
    texts: dict[Unit, Callable[[int], str]] = {
        "ns": format_ns, "bytes": format_bytes, "count": format_count,
    }  # fmt: skip
    return texts[unit](value)


def signed(change: Change | Figure) -> str:
    """By how much it changed: ``+49.8 ms a step``; empty where that is not known."""
    if change.unit is None or change.delta is None:
        return ""
    sign = "+" if change.delta > 0 else "-" if change.delta < 0 else "±"
    each = " a step" if isinstance(change, Change) and change.per_step else ""
    return f"{sign}{amount(abs(change.delta), change.unit)}{each}"


def label(figure: Figure) -> str:
    """``busy_ns_per_step`` of ``cuda:0`` as ``cuda:0 busy a step``."""
    name = figure.name.removesuffix("_per_step")
    each = " a step" if name != figure.name else ""
    plain = re.sub(r"_(ns|bytes)$", "", name)
    words = _LABELS.get(plain, plain.removeprefix("n_").replace("_", " ")) + each
    return f"{visible(figure.device)} {words}" if figure.device else words


def share_of(figure: Figure) -> str:
    """By what share of what it was it changed: ``+12%``; empty for many times as much."""
    if not figure.delta or not figure.before:
        return ""
    share = figure.delta / figure.before
    return f"{'+' if share > 0 else '-'}{format_share(abs(share))}" if share < _MANIFOLD else ""


def subject_of(change: Change) -> str:
    """What it is, beside where: a rule, a kernel, some blocks of a device."""
    if change.kind == "kernel":
        return short_kernel(visible(change.name), 60)
    if change.kind != "memory":
        return visible(change.name)
    blocks = format_count(change.n_after)
    if change.status == "fixed":
        blocks = format_count(change.n_before)
    elif change.status != "new" and change.n_before != change.n_after:
        blocks = f"{format_count(change.n_before)} to {format_count(change.n_after)}"
    return f"{blocks} block{'s' if blocks != '1' else ''} on {visible(change.device or '')}"
