"""``profkit history``: figures and findings over commits."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from profkit.cli._options import (
    FormatChoice,
    add_analysis_options,
    add_output_options,
    add_paths_argument,
    add_top_option,
)
from profkit.cli._output import check_target, deliver, layout

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions


@click.command(
    short_help="Show figures and findings over commits.",
    epilog="\b\nExample: profkit history traces --format html -o history.html",
)
@add_paths_argument
@add_output_options(FormatChoice(result="history"))
@click.option(
    "--tensorboard",
    "logdir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the figures as TensorBoard scalars as well.",
)
@add_analysis_options
@add_top_option(10, "Number of findings.")
@click.option("--verbose", "-v", is_flag=True, help="Show all findings.")
def command(
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str,
    force: bool,
    logdir: Path | None,
    options: "AnalysisOptions",
    top: int,
    verbose: bool,
) -> int:
    """Show step time, memory and findings over commits, and when each finding appeared.

    PATH is a recording, a report in JSON, or a folder of them. Recordings of one commit, on one
    device and with one version of PyTorch, are repeated runs of it. Figures of different devices
    are on different lines. Without PATH, all recordings in $PROFKIT_DIR, else traces, are shown.
    """
    from profkit.api import history, render
    from profkit.cli._inputs import read_reports
    from profkit.cli._newest import find_runs_in
    from profkit.cli._progress import progress
    from profkit.folders import traces_folder

    check_target(output, force=force)
    if not paths:
        # A history is of all recordings, not of the newest. Without any it says what to do.
        next(find_runs_in(traces_folder()))
        paths = (traces_folder(),)
    with progress() as shown:
        figures = history(read_reports(paths, options, shown))

    if logdir is not None:
        # TensorBoard is imported for its option alone.
        from profkit.integrations.tensorboard.history import write_history

        for file in write_history(figures, logdir):
            click.echo(f"profkit: wrote {file}", err=True)

    product = render(figures, format_, **layout(output), top=top, verbose=verbose)
    deliver(product, output, force=force)
    return 0
