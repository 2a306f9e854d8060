"""The texts of a comparison: its headline, labels and figures, for every format."""

from collections.abc import Callable, Iterator
from typing import Final, Literal

from profkit.engine.wording import counted
from profkit.model.difference import Change, ChangeKind, Difference, Figure, FixResult, Unit
from profkit.model.location import Location
from profkit.names import short_kernel, visible
from profkit.units import format_bytes, format_count, format_ns, format_share

TITLES: Final[tuple[tuple[ChangeKind, str], ...]] = (
    ("memory", "Live memory, by stack"),
    ("finding", "Findings"),
    ("kernel", "Kernels"),
    ("operator", "Operators"),
)
_LABELS: Final = {
    "collective_wait": "waiting for ranks",
    "transfer": "transfer of collectives",
    "step": "step time", "window": "whole recording", "gpu_busy": "GPU busy",
    "gpu_idle": "GPU idle", "data_wait": "waiting for data", "memcpy": "copies",
    "n_memcpy": "number of copies", "host_rss": "host memory", "tensor": "live tensors",
    "graph": "saved for backward", "worker": "loader worker",
}  # fmt: skip
_NEUTRAL: Final = frozenset(
    (
        "n_ranks", "n_segments", "n_blocks", "inactive_bytes", "largest_free_block_bytes",
        "busy_ns", "gpu_busy_ns", "compute_ns",
    )
)  # fmt: skip
"""Figures of which neither more nor less is better: a busy device may also wait less."""
_UNCHANGED_SHARE: Final = 0.01
_PREDICTION_TOLERANCE: Final = 0.25
"""Recordings of the same program differ by about as much on a busy machine."""
_MAX_RATIO: Final = 10
"""From this ratio on, a percentage adds nothing to the two figures."""


def summarize_difference(difference: Difference) -> str:
    """Write the change of step time or memory, and the number of changed findings."""
    # Reversed, so that of several devices the first one stays.
    by_name = {figure.name: figure for figure in reversed(difference.figures)}
    sentences = []

    if "step_ns" in by_name:
        sentences.append(_compared("Step time is", by_name["step_ns"]))
    elif "window_ns" in by_name:
        sentences.append(_compared("The recording takes", by_name["window_ns"]))
    elif "active_bytes" in by_name:
        figures = [figure for figure in difference.figures if figure.name == "active_bytes"]
        largest = max(figures, key=lambda figure: abs(figure.delta or 0))
        sentences.append(_compared(f"Active memory on {visible(largest.device or '')} is", largest))
        sentences += _largest_change(difference, largest.device)
    elif "host_rss_bytes" in by_name:
        sentences.append(_compared("Host memory at the end is", by_name["host_rss_bytes"]))

    findings = difference.of_kind("finding")
    counts = [
        f"{format_count(n)} {what}"
        for what in ("new", "fixed", "worse", "better")
        if (n := sum(change.status == what for change in findings))
    ]

    if counts:
        sentences.append(f"Findings: {', '.join(counts)}.")
    if difference.fixes is not None:
        sentences.append(_compare_prediction(difference.fixes))

    return " ".join(sentences) or "The recordings have no figures in common."


def _compare_prediction(fixes: FixResult) -> str:
    """Write what was predicted for the fixed findings, and whether the step time fell by it.

    Two recordings differ in more than the fixes, so time beyond the prediction has another cause.
    """
    low, high = format_ns(fixes.low_ns), format_ns(fixes.high_ns)
    predicted = low if low == high else f"{low} to {high}" if fixes.low_ns else f"at most {high}"
    subject = "The fix was" if fixes.n == 1 else f"The {format_count(fixes.n)} fixes were"

    # Two recordings of one program differ: a small deviation is not worth a clause.
    outcome = ""
    if fixes.saved_ns <= 0:
        outcome = "; the step time did not fall"
    elif fixes.saved_ns < fixes.low_ns * (1 - _PREDICTION_TOLERANCE):
        outcome = f"; the step time fell by {format_ns(fixes.saved_ns)}"
    elif fixes.saved_ns > fixes.high_ns * (1 + _PREDICTION_TOLERANCE):
        outcome = f"; the other {format_ns(fixes.saved_ns - fixes.high_ns)} have another cause"

    return f"{subject} predicted to save {predicted} per step{outcome}."


def _compared(start: str, figure: Figure) -> str:
    before, after, delta = figure.before, figure.after, figure.delta
    if before is None or after is None or delta is None:
        recorded, side = (before, "before") if after is None else (after, "after")
        return f"{start} {amount(recorded, figure.unit)} {side}, and unknown on the other side."
    if abs(delta) <= _UNCHANGED_SHARE * max(before, after):
        return f"{start} {amount(after, figure.unit)}, as before."

    has_share = before and abs(delta) < _MAX_RATIO * before
    share = f" ({format_share(abs(delta) / before)})" if has_share else ""
    return (
        f"{start} {amount(after, figure.unit)} instead of {amount(before, figure.unit)}: "
        f"{amount(abs(delta), figure.unit)}{share} {'more' if delta > 0 else 'less'}."
    )


def _largest_change(difference: Difference, device: str | None) -> Iterator[str]:
    """Yield the line whose memory on a device changed most, over all stacks that end there."""
    by_line: dict[tuple[str | None, str], int] = {}
    for change in difference.of_kind("memory"):
        if change.device == device:
            location = change.location or Location()
            line = (location.file, location.place)
            by_line[line] = by_line.get(line, 0) + (change.delta or 0)

    (file, place), delta = max(
        by_line.items(), key=lambda pair: abs(pair[1]), default=((None, ""), 0)
    )

    if file is not None and delta:
        yield f"Largest change: {visible(place)}, {_signed(delta, 'bytes')}."


def amount(value: int | None, unit: Unit | None) -> str:
    """Format a figure with its unit; empty if unknown."""
    if value is None or unit is None:
        return ""
    texts: dict[Unit, Callable[[int], str]] = {
        "ns": format_ns,
        "bytes": format_bytes,
        "count": format_count,
    }
    return texts[unit](value)


def signed(change: Change | Figure) -> str:
    """Format the difference, ``+49.8 ms per step``; empty if unknown."""
    if change.unit is None or change.delta is None:
        return ""
    per_step = " per step" if isinstance(change, Change) and change.per_step else ""
    return f"{_signed(change.delta, change.unit)}{per_step}"


def tone(figure: Figure) -> Literal["better", "worse", ""]:
    """Return whether a figure got better or worse, by at least 1%; empty if neither."""
    if not figure.delta or figure.name.removesuffix("_per_step") in _NEUTRAL:
        return ""
    if abs(figure.delta) <= _UNCHANGED_SHARE * max(figure.before or 0, figure.after or 0):
        return ""
    return "worse" if figure.delta > 0 else "better"


def _signed(delta: int, unit: Unit) -> str:
    sign = "+" if delta > 0 else "-" if delta < 0 else "±"
    return f"{sign}{amount(abs(delta), unit)}"


def label(figure: Figure) -> str:
    """Write ``busy_ns_per_step`` of ``cuda:0`` as ``cuda:0 busy per step``."""
    total = figure.name.removesuffix("_per_step")
    per_step = " per step" if total != figure.name else ""
    key = total.removesuffix(f"_{figure.unit}")
    text = _LABELS.get(key, key.removeprefix("n_").replace("_", " ")) + per_step
    return f"{visible(figure.device)} {text}" if figure.device else text


def share_of(figure: Figure) -> str:
    """Format the relative difference, ``+12%``; empty if it is tenfold or more."""
    if not figure.delta or not figure.before:
        return ""
    share = figure.delta / figure.before
    return f"{'+' if share > 0 else '-'}{format_share(abs(share))}" if share < _MAX_RATIO else ""


def subject_of(change: Change) -> str:
    """Name the changed rule, kernel or operator, or the blocks of a device."""
    if change.kind == "kernel":
        return short_kernel(visible(change.name), 60)
    if change.kind != "memory":
        return visible(change.name)

    device = visible(change.device or "")
    n = change.n_before if change.status == "fixed" else change.n_after
    if change.status in {"new", "fixed"} or change.n_before == change.n_after:
        return f"{counted(n, 'block')} on {device}"
    return f"{format_count(change.n_before)} to {format_count(n)} blocks on {device}"
