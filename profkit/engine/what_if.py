"""Predicts the step time with changes that a user names."""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from profkit.arguments import is_number
from profkit.engine.context import Context
from profkit.engine.figures.critical_path import per_step_by_kind
from profkit.errors import UsageError
from profkit.index.distinct import distinct, united
from profkit.index.intervals import Intervals, covered_by, of_pairs, subtract
from profkit.index.replay.critical_path import find_critical_path
from profkit.model.change import ProgramChange, together
from profkit.model.events import DEVICE_WORK, HOST_CALLS, NO_ROW, Category, Int32s, Mask, Rows
from profkit.model.finding import Finding, Unchecked
from profkit.model.location import Location, base_name, first_with_file, numbered_line
from profkit.model.what_if import AppliedChange, Combinations, PredictedTime, Prediction
from profkit.names import short_kernel, visible

_NOUNS: Final = {
    Category.KERNEL: "kernels",
    Category.MEMCPY: "copies",
    Category.MEMSET: "fills",
    Category.OP: "operators",
    Category.PYTHON: "Python functions",
    Category.ANNOTATION: "regions",
    **dict.fromkeys(HOST_CALLS, "runtime calls"),
}
_N_EXAMPLES: Final = 3
_MAX_NAME: Final = 60
MAX_SWITCHES: Final = 12
"""Findings that :func:`predict_combinations` combines: more than a reader compares."""
_PAIR: Final = 2
_MAX_NODES: Final = 3_000_000
"""What can be replayed within about a second."""
_SETUP_NODES: Final = 3_000
"""Changing the graph takes about as long as replaying these."""


def predict(ctx: Context, changes: Iterable[tuple[AppliedChange, ProgramChange]]) -> Prediction:
    """Replay a recording with all of some changes.

    Args:
        changes: The changes, each with its description.
    """
    changes = tuple(changes)
    change, n = together(change for _, change in changes), max(1, len(ctx.steps))

    before, (predicted,) = ctx.critical_path, _predict(ctx, [change])
    after = find_critical_path(ctx.replay, ctx.path_activity, change)
    before_ns = round(ctx.replay.recorded_ns / n)

    return Prediction(
        path=ctx.path,
        n_steps=len(ctx.steps),
        changes=tuple(description for description, _ in changes),
        before_ns=before_ns,
        after_ns=predicted.after_ns,
        min_after_ns=predicted.min_after_ns,
        saving_ns=before_ns - predicted.after_ns,
        max_saving_ns=before_ns - predicted.min_after_ns,
        critical_path_before_ns=per_step_by_kind(before, n),
        critical_path_after_ns=per_step_by_kind(after, n),
        unexplained_share=before.unexplained_ns / max(1, ctx.replay.recorded_ns),
        basis="upper-bound" if ctx.is_unexplained else "replay",
    )


def _predict(ctx: Context, changes: Sequence[ProgramChange]) -> list[PredictedTime]:
    """Predict the time per step with each of some changes, or of the recording without steps."""
    replay, n = ctx.replay, max(1, len(ctx.steps))
    predictions = []
    for change, lengths in zip(changes, replay.lengths_ns(changes).T.tolist(), strict=True):
        kept_ns, least_ns = lengths[0], min(lengths)
        if ctx.is_unexplained and not len(change.captured):
            # All that is unexplained may disappear too, but no more time than the change removes.
            removed_ns = max(0, replay.removed_ns(change))
            least_ns -= ctx.critical_path.unexplained_ns
            least_ns = min(kept_ns, max(least_ns, replay.recorded_ns - removed_ns, 0))
        predictions.append(PredictedTime(round(kept_ns / n), round(least_ns / n)))

    return predictions


def predict_combinations(ctx: Context, changes: Sequence[ProgramChange]) -> Combinations:
    """Predict the time with any combination of some changes.

    If all of them would take too long to replay, the result has the combinations of no, one,
    all and, if they do not take too long either, two changes.

    Args:
        changes: At most :data:`MAX_SWITCHES`.
    """
    # A combination is a number whose bits choose the changes.
    numbers = range(1 << len(changes))
    n_nodes = 2 * (len(ctx.graph) + _SETUP_NODES)

    def up_to(most: int) -> list[int]:
        return [number for number in numbers if number.bit_count() <= most or number == numbers[-1]]

    sizes = (size for size in (len(changes), _PAIR) if len(up_to(size)) * n_nodes <= _MAX_NODES)
    chosen = up_to(next(sizes, 1))

    combined = [
        together(change for i, change in enumerate(changes) if number >> i & 1) for number in chosen
    ]
    times = _predict(ctx, combined)
    return Combinations(len(changes), dict(zip(chosen, times, strict=True)))


def scale_matches(ctx: Context, pattern: str, factor: float) -> tuple[AppliedChange, ProgramChange]:
    """Scale the time of everything that a pattern matches.

    Kernels, copies and fills change alone. Operators, regions and Python functions change with all
    that happens during them on their thread, and with the work that they launched; if the factor is
    0, they no longer wait for the device either.

    Args:
        pattern: A whole name, of kernels also the short one of reports, where ``*`` stands for any
            characters and ``?`` for any one. If it matches device work, host events of matching
            names do not change.
        factor: What their time is multiplied by.

    Raises:
        UsageError: The pattern matches nothing, or the factor is negative or not finite.
    """
    if not (math.isfinite(factor) and factor >= 0):
        raise UsageError(
            f"The factor of {pattern!r} is {factor:g}.",
            "It is what the time is multiplied by: 0 or more, such as 0.5 for half.",
        )

    named = _match_names(ctx, pattern)
    category = ctx.events.category
    rows = np.flatnonzero(named & np.isin(category, DEVICE_WORK))
    if not len(rows):
        rows = np.flatnonzero(named & np.isin(category, [*_NOUNS]))
    if not len(rows):
        raise UsageError(
            f"Nothing in {ctx.path} is named {pattern!r}.", _suggest_names(ctx, pattern)
        )

    counts = Counter(category[rows].tolist())
    matched: Counter[str] = Counter()
    for code, n in counts.items():
        matched[_NOUNS[Category(code)]] += n

    calls, work = _find_during(ctx, rows)
    change = ProgramChange(
        calls=calls if factor == 0 else calls[:0],
        scaled=((united(rows, work), factor),),
    )
    return AppliedChange("scale", pattern, factor, dict(matched)), change


def _match_names(ctx: Context, pattern: str) -> Mask:
    """Return which rows have a name that a pattern matches as a whole. Shape ``(n,)``.

    Kernels also have the short name under which reports show them.
    """
    pieces = re.split(r"([*?])", pattern)
    wild = {"*": ".*", "?": "."}
    expression = re.compile(
        "".join(wild.get(piece, re.escape(piece)) for piece in pieces), re.DOTALL
    )

    names = ctx.events.names
    is_match = np.fromiter(
        (expression.fullmatch(name) is not None for name in names), np.bool_, len(names)
    )
    for number in distinct(ctx.events.name[ctx.events.kernels]).tolist():
        is_match[number] |= expression.fullmatch(short_kernel(names[number])) is not None

    return np.asarray(is_match[ctx.events.name])


def _suggest_names(ctx: Context, pattern: str) -> str:
    """Suggest names that contain the pattern's longest part, else the names with the most time."""
    events = ctx.events
    literal = max(re.split(r"[*?]", pattern), key=len).lower()

    total: Counter[str] = Counter()
    for row in np.flatnonzero(np.isin(events.category, [*_NOUNS])).tolist():
        name = events.name_of(row)
        is_kernel = events.category[row] == Category.KERNEL
        total[short_kernel(name) if is_kernel else name] += int(events.dur_ns[row])

    names = [visible(name) for name, _ in total.most_common() if len(name) <= _MAX_NAME]
    similar = [name for name in names if literal and literal in name.lower()]

    if similar:
        return f"A pattern matches whole names, such as {similar[0]!r}; * stands for the rest."

    longest = " or ".join(map(repr, names[:_N_EXAMPLES]))
    return f"Names are those of the trace, such as {longest}." if longest else "It has no events."


def _find_during(ctx: Context, rows: Rows) -> tuple[Rows, Rows]:
    """Return blocking calls during host events, and device work launched during them.

    Calls of the runtime count without the work that they launch.
    """
    calls = ctx.syncs.rows[ctx.nearest(rows)[ctx.syncs.rows] != NO_ROW]

    launchers = rows[~np.isin(ctx.events.category[rows], (*HOST_CALLS, *DEVICE_WORK))]
    source = ctx.launches.call_or_op
    is_within = (source != NO_ROW) & (ctx.nearest(launchers)[source] != NO_ROW)

    return calls.astype(np.intp), ctx.launches.work[is_within]


def remove_findings(
    ctx: Context, word: str, findings: Sequence[Finding], skipped: Unchecked | None
) -> tuple[AppliedChange, ProgramChange]:
    """Build the change that fixes findings.

    Args:
        word: A rule, as in ``SYN001`` or ``SYN001@train.py:41``.
        findings: The findings of the rule.
        skipped: Why the rule was skipped, if it was.

    Raises:
        UsageError: It has no findings there, or none that costs time.
    """
    rule, _, place = word.partition("@")
    if skipped is not None:
        raise UsageError(f"{rule} could not be checked. {skipped.reason}", skipped.remedy)

    chosen = [
        finding
        for finding in findings
        if not place or any(_is_at(location, place) for location in finding.locations)
    ]
    if not chosen:
        places = [
            visible(f"{location.file}:{location.line}")
            for finding in findings
            for location in finding.locations
            if location.file
        ]
        hint = f"It has findings at {', '.join(dict.fromkeys(places))}." if places else ""
        at_place = f" at {place}" if place and findings else ""
        raise UsageError(f"{rule} has no finding{at_place} in {ctx.path}.", hint)

    changes = [finding.change for finding in chosen if finding.change is not None]
    if not changes:
        message = f"The findings of {rule} cost no time that a replay can remove."
        raise UsageError(message, "Remove findings with a cost in time.")

    applied = AppliedChange("remove", word, 0.0, {"findings": len(changes)})
    return applied, together(changes)


def _is_at(location: Location, place: str) -> bool:
    """Return whether a location is in a file, or at a line of it, such as ``train.py:41``."""
    file, _, line = place.rpartition(":")
    if not (file and line.isdecimal()):
        file, line = place, ""

    location_file = (location.file or "").replace("\\", "/")
    is_file = location_file == file or location_file.endswith(f"/{file}")
    return is_file and (not line or str(location.line) == line.lstrip("0"))


def predict_usual_changes(ctx: Context, findings: Sequence[Finding]) -> tuple[Prediction, ...]:
    """Predict the changes that save time, each alone: findings, waits for data, one graph.

    Returns:
        At most :data:`MAX_SWITCHES` predictions, the one that saves most first.
    """
    by_target: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.change is not None:
            location = first_with_file(finding.locations)
            file = base_name(location.file or "") if location is not None else ""
            place = f"@{numbered_line(file, location.line)}" if location is not None else ""
            by_target.setdefault(f"{finding.rule}{place}", []).append(finding)

    changes = [
        remove_findings(ctx, target, at_place, None)
        for target, at_place in list(by_target.items())[:MAX_SWITCHES]
    ]
    for build_change in (without_data_waits, use_graphs):
        # A program without a DataLoader, or without a device, has no such change.
        with contextlib.suppress(UsageError):
            changes.append(build_change(ctx))

    predictions = [predict(ctx, [change]) for change in changes]
    saving = [prediction for prediction in predictions if prediction.saving_ns > 0]
    return tuple(sorted(saving, key=lambda prediction: -prediction.saving_ns)[:MAX_SWITCHES])


def without_data_waits(ctx: Context) -> tuple[AppliedChange, ProgramChange]:
    """Build the change to a program that never waits for its next batch.

    Raises:
        UsageError: The recording has no such wait.
    """
    waits = ctx.data_waits
    if not len(waits):
        raise UsageError(
            f"{ctx.path} has no wait for a batch.",
            "profkit finds the waits of torch.utils.data.DataLoader and of profkit.steps().",
        )
    applied = AppliedChange("data-wait", "", 0.0, {"waits": len(waits)})
    return applied, ProgramChange(scaled=((waits, 0.0),))


def use_graphs(ctx: Context) -> tuple[AppliedChange, ProgramChange]:
    """Build the change to a program that launches the work of each step as one graph.

    From the end of the first launch of a step to the end of its last one, host threads spend time
    only on blocking calls and on waiting for data. Device work follows what it waits for with the
    usual lag.

    Raises:
        UsageError: The recording has no steps or no launches.
    """
    launch = distinct(ctx.launches.calls)
    step = ctx.step_of(launch) if len(launch) else launch

    if not len(ctx.steps):
        message = f"{ctx.path} has no steps, so it is unknown what one graph would launch."
        raise UsageError(message, "Record steps with profkit.trace() or with torch.profiler.")
    if not (step >= 0).any():
        message = f"No step of {ctx.path} launches device work."
        raise UsageError(message, "A graph replaces launches of kernels and copies.")

    # Also with a graph, the host waits where it needs a result or the next batch.
    host_waits = covered_by(ctx.events, np.concatenate((ctx.syncs.rows, ctx.data_waits)))
    spans = tuple(
        pair for span in _spans(ctx, launch) for pair in subtract(span, host_waits).pairs()
    )

    is_captured = np.isin(ctx.launches.launch, launch[step >= 0])
    captured = ctx.launches.work[is_captured]
    applied = AppliedChange("graph", "", 0.0, {"launches": int((step >= 0).sum())})
    return applied, ProgramChange(host_time=spans, captured=captured)


def _spans(ctx: Context, launch: Int32s) -> Iterator[Intervals]:
    """Yield the time from the first launch of each step to the end of its last one."""
    step, ends = ctx.step_of(launch), ctx.events.end_ns[launch]
    for number in distinct(step[step >= 0]).tolist():
        of_step = ends[step == number]
        start, end = int(of_step.min()), int(of_step.max())
        yield of_pairs(((start, end),))


def check_factors(scale: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield patterns and factors.

    Raises:
        UsageError: A factor is not a number.
    """
    for pattern, factor in scale.items():
        if not is_number(factor):
            message = f"The factor of {pattern!r} is {factor!r}, which is not a number."
            raise UsageError(message, "Write 0.5 for half of the time.")
        yield pattern, float(factor)
