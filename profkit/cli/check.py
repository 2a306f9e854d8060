"""``profkit check``: whether a program keeps its budgets, for CI."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from profkit.cli._options import (
    FormatChoice,
    add_analysis_options,
    add_output_options,
    add_paths_argument,
)
from profkit.cli._output import check_target, deliver, layout

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions


@click.command(
    short_help="Fail if a program exceeds its budgets.",
    epilog="\b\nExamples:\n  profkit check --baseline baseline.json --update-baseline\n"
    "  profkit check --baseline baseline.json",
)
@add_paths_argument
@click.option(
    "--budget",
    "budget_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with the budgets; by default pyproject.toml.",
)
@click.option(
    "--baseline",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Baseline or report in JSON, for budgets such as +5%.",
)
@click.option("--update-baseline", is_flag=True, help="Write the figures to the baseline's file.")
@add_output_options(FormatChoice(result="check"))
@add_analysis_options
def command(
    *,
    paths: tuple[str, ...],
    budget_file: Path | None,
    baseline: Path | None,
    update_baseline: bool,
    format_: str,
    output: str,
    force: bool,
    options: "AnalysisOptions",
) -> int:
    """Compare a program's figures with its budgets, and exit with 1 if one is exceeded.

    PATH is a trace, a memory record, a snapshot, a report in JSON, or a folder of them, from one
    run or from repeated runs. Counts and sizes are compared exactly. Times are medians over the
    steps: a time fails only if it exceeds its limit by more than its noise, and is not compared
    with the baseline of another device. Without PATH, the newest recording in $PROFKIT_DIR, else
    traces, is checked.

    Budgets are read from [tool.profkit.budgets] in pyproject.toml. Without any, a baseline allows
    10% more time and memory, and no more syncs, recompilations and errors than it has.
    """
    from profkit.analysis.config import read_budgets, read_config
    from profkit.api import render
    from profkit.budgets.baseline import (
        baseline_text,
        build_baseline,
        build_usual_budgets,
        read_baseline,
    )
    from profkit.budgets.check import check
    from profkit.budgets.limits import budgets_of
    from profkit.cli._inputs import read_all
    from profkit.cli._newest import select_recordings
    from profkit.cli._progress import progress
    from profkit.errors import UsageError

    check_target(output, force=force)
    if update_baseline and baseline is None:
        raise UsageError("--update-baseline needs --baseline FILE.")

    if budget_file is not None:
        budgets = budgets_of(read_budgets(budget_file), str(budget_file))
    else:
        config = read_config()
        budgets = budgets_of(config.budgets, config.file)
    if not budgets and baseline is None:
        hint = (
            "Write a baseline with --baseline baseline.json --update-baseline, or add "
            "[tool.profkit.budgets] to pyproject.toml, such as syncs = 0."
        )
        raise UsageError("There is no budget.", hint)

    # A baseline that is about to be replaced is not a reference.
    reference = (
        read_baseline(str(baseline)) if baseline is not None and not update_baseline else None
    )
    with progress() as shown:
        reports = [read.report for read in read_all(select_recordings(paths), options, shown)]
    if update_baseline:
        new = build_baseline(reports)
        deliver(baseline_text(new), str(baseline), force=True)
        click.echo(f"profkit: wrote {baseline}", err=True)
        reference = new

    if not budgets and reference is not None:
        budgets = build_usual_budgets(reference)
    result = check(reports, budgets, reference)
    deliver(render(result, format_, **layout(output)), output, force=force)
    return int(not result.is_ok)
