"""The text of a prediction for a job: its step time with changes of its ranks."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.wording import counted, rank_list, the_ranks
from profkit.model.what_if import JobCase, JobPrediction, RanksChange
from profkit.names import short_path, visible
from profkit.units import format_ns, format_share

_WIDTH: Final = 12
_MIN_SHARE: Final = 0.001
"""A smaller share is not worth a remark."""


def job_what_if_text(result: JobPrediction, base: str = "") -> str:
    """Format a prediction for a terminal, with a line end; all names are safe to show there.

    Args:
        base: An absolute folder; the job's path is given relative to it.
    """
    return "\n".join(_format_lines(result, base)) + "\n"


def _format_lines(result: JobPrediction, base: str) -> Iterator[str]:
    time = "A step" if result.n_steps else "The recording"
    where = visible(short_path(result.path, base))
    over = f", mean of {counted(result.n_steps, 'step')}" if result.n_steps else ""
    yield (
        f"{time} of the job takes {format_ns(result.before_ns)} ({the_ranks(result.ranks)} in "
        f"{where}{over})."
    )

    if result.matched_share < 1:
        yield (
            f"{format_share(result.matched_share)} of collective calls are matched; the others "
            "last as long as recorded."
        )
    if result.unexplained_share >= _MIN_SHARE:
        share = format_share(result.unexplained_share)
        yield f"Idle time for which the recording has no reason ({share}) is left out."

    yield ""
    title = "Changes, each alone" if len(result.cases) > 1 else "Changes"
    width = max(len(title), *(len(case_text(case)) + 2 for case in result.cases), 0) + 2
    yield f"{title:<{width}}{'step' if result.n_steps else 'time':>{_WIDTH}}{'less':>{_WIDTH}}"
    yield from (_row(case, result.before_ns, width) for case in result.cases)


def _row(case: JobCase, before_ns: int, width: int) -> str:
    saves = case.saving_ns > 1  # times per step are rounded: 1 ns is not a change
    less = format_ns(case.saving_ns) if abs(case.saving_ns) > 1 else "-"
    share = f"  {format_share(case.saving_ns / before_ns)}" if saves and before_ns else ""
    cells = f"{format_ns(case.after_ns):>{_WIDTH}}{less:>{_WIDTH}}"
    return f"{'  ' + case_text(case):<{width}}{cells}{share}"


def case_text(case: JobCase) -> str:
    """Join some changes: ``rank 2 as fast as the median of the others; bandwidth x 2``."""
    return "; ".join(change_text(change) for change in case.changes)


def change_text(change: RanksChange) -> str:
    """Return one change, such as ``rank 2 as fast as the median of the others``."""
    if change.kind == "rank":
        return f"rank {change.ranks[0]} as fast as the median of the others"
    if change.kind == "stage":
        return f"stage {change.stage} (ranks {rank_list(change.ranks)}) as long as the mean of all"
    if change.kind == "even":
        return "all ranks as long as their mean"
    if change.kind == "no-waiting":
        return "no rank waits for another"
    of = f" of {visible(change.target)}" if change.target else ""
    return f"bandwidth{of} x {change.factor:g}: {counted(change.n_collectives, 'collective')}"
