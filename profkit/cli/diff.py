"""``profkit diff``: what changed from one recording to another."""

from typing import TYPE_CHECKING

import click

from profkit.cli._options import add_analysis_options, add_output_options, at_least
from profkit.cli._output import check_target, deliver, layout
from profkit.model.finding import SEVERITIES

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions


@click.command(
    short_help="Compare two recordings.",
    epilog="\b\nExample: profkit diff before.snapshot.pickle.gz after.snapshot.pickle.gz",
)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@add_output_options(click.Choice(("html", "json", "md", "text")))
@add_analysis_options
@click.option("--top", metavar="N", type=click.IntRange(min=1), default=5, show_default=True,
              help="Number of changes of each kind.")  # fmt: skip
@click.option("--fail-on", type=click.Choice(SEVERITIES),
              help="Exit with 1 if a new or worse finding has at least this severity.")  # fmt: skip
@click.option("--verbose", "-v", is_flag=True, help="Show all changes, memory with its stacks.")
def command(  # noqa: PLR0913  (one argument per option)
    *,
    before: str,
    after: str,
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
    """
    from dataclasses import replace

    from profkit.api import compare_with, compared_flames, render
    from profkit.cli._next_command import after_difference
    from profkit.cli._progress import progress

    check_target(output, force=force)
    # A comparison has no shares of peaks.
    options = replace(options, peaks={})
    with progress() as shown:
        shown.reading(before)
        difference = compare_with(before, after, options, shown.on_progress)
        # Only the page draws flame graphs, which need the recordings besides the reports.
        graphs = compared_flames(before, after, options) if format_ == "html" else ()
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
