"""``profkit analyze``: the report of traces that are there already."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from profkit.cli._inputs import each_of
from profkit.cli._next_command import after_report
from profkit.cli._options import FormatChoice, reading_options
from profkit.cli._output import STDOUT, check_target, deliver, layout
from profkit.cli._progress import Progress, progress
from profkit.model.finding import SEVERITIES
from profkit.units import format_ns

if TYPE_CHECKING:
    from profkit.api import Study
    from profkit.model.report import Report


@click.command(
    short_help="Report what made a recorded program slow or hungry.",
    epilog="\b\nExample: profkit analyze traces/train/host_1.17.pt.trace.json.gz --top 10",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--format", "format_", type=FormatChoice(), default="text", help="How to show it.")
@click.option("-o", "--output", metavar="FILE", default=STDOUT, help="Where to; - is stdout.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@reading_options
@click.option("--top", metavar="N", type=click.IntRange(min=1), default=5, show_default=True,
              help="How many findings, kernels and operators the text shows.")  # fmt: skip
@click.option("--fail-on", type=click.Choice(SEVERITIES),
              help="Exit with 1 if a finding is at least this severe.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Stop if a rule crashes, instead of saying so.")
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show everything that the report holds, and how long each stage took.",
)
def command(  # noqa: PLR0913  (one argument an option)
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str,
    force: bool,
    chosen: Mapping[str, Any],
    top: int,
    fail_on: str | None,
    strict: bool,
    verbose: bool,
) -> int:
    """Say what made a recorded program slow or hungry, most costly first.

    PATH is a trace that profkit or torch.profiler wrote, a snapshot of the CUDA allocator's
    memory, or a folder or an archive of them, each of which gets a report. Neither a GPU nor
    torch is needed.
    """
    from profkit.readers.snapshot.worker_process import start_early

    entered = time.perf_counter_ns()
    check_target(output, force=force)
    start_early(paths[0])

    from profkit.api import render
    from profkit.present.renderer import renderer, together

    module = renderer(format_)
    options = {**layout(output), "top": top, "verbose": verbose}
    chosen = {**chosen, "strict": strict}
    products, reports, read = [], [], []
    took: dict[str, int] = {}
    with progress() as shown:
        for path, studied in _studies(paths, chosen, shown, took):
            began = time.perf_counter_ns()
            shown.writing(format_)
            read.append(path)
            reports.append(studied.report)
            products.append(render(studied.report, format_, recording=studied.recording, **options))
            took["render"] = took.get("render", 0) + time.perf_counter_ns() - began
            del studied  # before the next one is read
        product = together(module, products)
    deliver(product, output, force=force)
    if output != STDOUT and sys.stderr.isatty():
        click.echo(f"profkit: the report is in {output}", err=True)
    if verbose:
        _tell_stages(took, time.perf_counter_ns() - entered)
    if len(reports) == 1:
        after_report(reports[0], *read, output=output, format_=format_)
    return int(any(_reaches(report, fail_on) for report in reports))


def _studies(
    paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress, took: dict[str, int]
) -> Iterator[tuple[str, "Study"]]:
    """Every file that paths name and its study, one at a time, shown and timed on its way."""
    from profkit.api import study

    def on_stage(stage: str, ns: int) -> None:
        took[stage] = took.get(stage, 0) + ns
        shown.on_stage(stage)

    def read(path: str) -> tuple[str, "Study"]:
        shown.reading(path)
        return path, study(path, on_stage=on_stage, on_progress=shown.on_progress, **chosen)

    return each_of(paths, read)


def _tell_stages(took: Mapping[str, int], whole_ns: int) -> None:
    """Say on stderr where profkit's own time went, the longest first.

    Stages of several processes run side by side, so together they can be longer than the whole.
    """
    click.echo(f"profkit: {format_ns(whole_ns)} in all", err=True)
    for stage, ns in sorted(took.items(), key=lambda item: -item[1]):
        click.echo(f"  {format_ns(ns):>8}  {stage}", err=True)


def _reaches(report: "Report", severity: str | None) -> bool:
    """Whether a report holds a finding of at least some severity."""
    if severity is None:
        return False
    enough = SEVERITIES[SEVERITIES.index(severity) :]
    return any(finding.severity in enough for finding in report.findings)
