"""``profkit explain``: explains one finding."""

import os
import shlex
from typing import TYPE_CHECKING, Final

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

_EPILOG: Final = """\b
Examples:
  profkit explain 1
  profkit explain SYN001@train.py:41 traces/train
  profkit explain 1 trace.json.gz --format json
"""


@click.command(short_help="Explain one finding.", epilog=_EPILOG)
@click.argument("finding", metavar="FINDING")
@add_paths_argument
@add_output_options(FormatChoice(result="explanation"))
@add_analysis_options
def command(
    *,
    finding: str,
    paths: tuple[str, ...],
    format_: str,
    output: str,
    force: bool,
    options: "AnalysisOptions",
) -> int:
    """Explain one finding: its lines, events, calls and evidence, and the page of its rule.

    FINDING is an id such as SYN001@train.py:41, as in the JSON report, its number in the report, or
    the id or name of its rule if that has no other finding. PATH is a recording, its folder, or a
    report in JSON, which has no events. Of a folder with several runs the newest is taken; without
    PATH, the newest of $PROFKIT_DIR, else traces.
    """
    from profkit.api import render
    from profkit.cli._inputs import read_one
    from profkit.cli._newest import select_run
    from profkit.cli._progress import progress
    from profkit.errors import UsageError
    from profkit.folders import working_folder
    from profkit.present.explanation import explain

    check_target(output, force=force)
    if not paths and os.path.exists(finding):  # noqa: PTH110  (any text)
        hint = f"Put the finding first: {shlex.join(['profkit', 'explain', '1', finding])}"
        raise UsageError(f"{finding} is a path, not a finding.", hint)

    selection = select_run(paths)
    with progress() as shown:
        read = read_one(selection, options, shown)
        explanation = explain(read.report, read.recording, finding, str(working_folder()))
    deliver(render(explanation, format_, **layout(output)), output, force=force)
    return 0
