"""``profkit diff``: what changed from one recording to another."""

from typing import TYPE_CHECKING

import click

from profkit.cli._options import (
    FormatChoice,
    add_analysis_options,
    add_fail_on_option,
    add_output_options,
    add_top_option,
    at_least,
    complete_files,
)
from profkit.cli._output import check_target, deliver, layout

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.cli._newest import Selection
    from profkit.model.report import Report
    from profkit.present.flame_difference import FlameDifference


@click.command(
    short_help="Compare two recordings.",
    epilog="\b\nExamples:\n  profkit diff\n"
    "  profkit diff before.snapshot.pickle.gz after.snapshot.pickle.gz",
)
@click.argument("paths", metavar="[BEFORE AFTER]", nargs=-1, shell_complete=complete_files)
@add_output_options(FormatChoice(result="difference"))
@add_analysis_options
@add_top_option(5, "Number of changes of each kind.")
@add_fail_on_option("a new or worse finding has")
@click.option("--verbose", "-v", is_flag=True, help="Show all changes, memory with its stacks.")
def command(
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str,
    force: bool,
    options: "AnalysisOptions",
    top: int,
    fail_on: str | None,
    verbose: bool,
) -> int:
    """Show what is new, worse, better or fixed from BEFORE to AFTER.

    Two memory snapshots are compared by stack, in bytes. Traces, folders of the ranks of a job, and
    reports that profkit analyze saved as JSON, are compared by step time, findings and kernels.
    Without BEFORE and AFTER, the two newest recordings of one program in $PROFKIT_DIR, else traces,
    are compared; with one folder, those in it.
    """
    from dataclasses import replace

    from profkit.api import compare_with, render
    from profkit.cli._newest import select_pair
    from profkit.cli._next_command import after_difference
    from profkit.cli._progress import progress

    check_target(output, force=force)
    if len(paths) > 2:  # noqa: PLR2004  (a pair)
        raise click.UsageError(f"diff compares two recordings, not {len(paths)}.")
    before, after = select_pair(paths)
    # A comparison has no shares of peaks.
    options = replace(options, peaks={})
    with progress() as shown:
        shown.reading(before.paths[0])
        sides = _read_job(before, options), _read_job(after, options)
        difference = compare_with(*sides, options, shown.on_progress)
        # Only the page draws flame graphs, which need the recordings besides the reports.
        graphs = _compare_flames(*sides, options) if format_ == "html" else ()
        product = render(
            difference, format_, **layout(output), top=top, verbose=verbose, graphs=graphs
        )

    deliver(product, output, force=force)
    after_difference(difference, before, after, output=output)
    severe = at_least(fail_on)
    return int(
        any(
            change.status in {"new", "worse"} and change.severity in severe
            for change in difference.of_kind("finding")
        )
    )


def _read_job(selection: "Selection", options: "AnalysisOptions") -> "str | Report":
    """Report on the ranks of a job; return the path of any other recording, which is read later."""
    from profkit.api import report_on_ranks

    # A path that was given is read as it always was, a saved report too.
    if not selection.newest:
        return selection.paths[0]
    if len(selection.recordings) > 1:
        ranks = [rank.paths for rank in selection.recordings]
        report = report_on_ranks(ranks, options, of=selection.newest)
        if report is not None:
            return report
    return selection.newest


def _compare_flames(
    before: "str | Report", after: "str | Report", options: "AnalysisOptions"
) -> "tuple[FlameDifference, ...]":
    """Return the flame graphs that both recordings have; nothing for the ranks of a job."""
    from profkit.api import compared_flames

    if isinstance(before, str) and isinstance(after, str):
        return compared_flames(before, after, options)
    return ()
