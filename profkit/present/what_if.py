"""The text of a prediction: the step time before and after, the changes, the critical path."""

from collections.abc import Iterator, Sequence
from typing import Final

from profkit.model.what_if import AppliedChange, Prediction
from profkit.names import short_path, visible
from profkit.present.critical_path import path_label
from profkit.units import format_count, format_ns, format_share

_WIDTH: Final = 12


def what_if_text(result: Prediction, base: str = "") -> str:
    """Format a prediction for a terminal, with a line end; all names are safe to show there.

    Args:
        base: An absolute folder; the recording's path is given relative to it.
    """
    return "\n".join(_format_lines(result, base)) + "\n"


def _format_lines(result: Prediction, base: str) -> Iterator[str]:
    yield sentence(result)
    if result.is_upper_bound:
        share = format_share(result.unexplained_share)
        yield (
            f"The lower time is only a bound: for {share} of the critical path the recording shows "
            "no cause."
        )
    yield ""
    yield f"Changes of {visible(short_path(result.path, base))}"
    yield from (f"  {change_text(change)}" for change in result.changes)

    yield ""
    before, after = result.critical_path_before_ns, result.critical_path_after_ns
    title = "Critical path per step" if result.n_steps else "Critical path"
    # The kinds that take most of the time come first.
    kinds = sorted({*before, *after}, key=lambda kind: -before.get(kind, 0))
    label = max(len(title), *(len(path_label(kind)) + 2 for kind in kinds)) + 2
    yield f"{title:<{label}}{'before':>{_WIDTH}}{'after':>{_WIDTH}}{'change':>{_WIDTH}}"
    for kind in kinds:
        yield _row(f"  {path_label(kind)}", before.get(kind, 0), after.get(kind, 0), label)
    yield _row("  total", result.before_ns, result.after_ns, label)


def each_change_text(path: str, results: Sequence[Prediction], base: str = "") -> str:
    """Format predictions for a terminal, one a line: what the step takes with each change alone."""
    where = visible(short_path(path, base))
    if not results:
        return f"No finding and no wait of {where} costs time that a replay can remove.\n"

    first = results[0]
    time = "A step" if first.n_steps else "The recording"
    heads = ("Each change alone", "step" if first.n_steps else "time", "less", "")
    rows = [
        (
            f"  {change_text(result.changes[0])}",
            format_ns(result.after_ns),
            format_ns(result.saving_ns),
            "up to " * result.is_upper_bound + format_share(result.saving_ns / result.before_ns),
        )
        for result in results
    ]

    width = max(len(name) for name, *_ in (heads, *rows)) + 2
    lines = [
        f"{name:<{width}}{after:>{_WIDTH}}{less:>{_WIDTH}}  {share}".rstrip()
        for name, after, less, share in (heads, *rows)
    ]
    return "\n".join([f"{time} of {where} takes {format_ns(first.before_ns)}.", "", *lines, ""])


def _row(name: str, before_ns: int, after_ns: int, width: int) -> str:
    delta = after_ns - before_ns
    # Parts are rounded so that they add up: 1 ns is not a change.
    change = f"{'+' if delta > 0 else ''}{format_ns(delta)}" if abs(delta) > 1 else "-"
    cells = (format_ns(before_ns), format_ns(after_ns), change)
    return f"{name:<{width}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def sentence(result: Prediction) -> str:
    """Return the time of the steps before and after, and the saving of the changes.

    This is the time of their critical path: the report's step time leaves out work of a device that
    ends after the last step of the host.
    """
    time = f"The critical path{' per step' if result.n_steps else ''}"
    before, after = format_ns(result.before_ns), format_ns(result.after_ns)
    less = result.saving_ns
    if result.before_ns == result.after_ns:
        return f"{time} stays at {before}.{_range(result)}"
    share = format_share(abs(less) / result.before_ns) if result.before_ns else "0%"
    how = "less" if less > 0 else "more"
    return (
        f"{time} changes from {before} to {after}: {format_ns(abs(less))} ({share}) {how}."
        f"{_range(result)}"
    )


def _range(result: Prediction) -> str:
    low, high = format_ns(result.after_ns), format_ns(result.min_after_ns)
    if low == high:
        return ""
    return f" At best, with latencies hidden behind other work: {high}."


def change_text(change: AppliedChange) -> str:
    """Return one change and its targets: ``nccl* x 0.5: 24 kernels``."""
    target = visible(change.target)
    what = {
        "remove": f"without {target}",
        "scale": f"{target} x {change.factor:g}",
        "graph": "one graph launch per step",
        "data-wait": "no wait for data",
    }[change.kind]

    matched = ", ".join(
        f"{format_count(n)} {noun[:-1] if n == 1 else noun}" for noun, n in change.matched.items()
    )
    return f"{what}: {matched}"
