"""``profkit analyze``: reports on existing recordings."""

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from profkit.cli._inputs import each_of, studied
from profkit.cli._next_command import after_report
from profkit.cli._options import FormatChoice, at_least, reading_options
from profkit.cli._output import STDOUT, check_target, deliver, layout
from profkit.cli._progress import progress
from profkit.model.finding import SEVERITIES
from profkit.units import format_ns

if TYPE_CHECKING:
    from profkit.model.report import Report
    from profkit.present.renderer import LoadedRecording


@click.command(
    short_help="Report why a recorded program is slow or memory-hungry.",
    epilog="\b\nExample: profkit analyze traces/train/host_1.17.pt.trace.json.gz --top 10",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--format", "format_", type=FormatChoice(), default="text", help="Output format.")
@click.option("-o", "--output", metavar="FILE", default=STDOUT,
              help="Output file; - is stdout.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@reading_options
@click.option("--tokens-per-step", metavar="N", type=click.IntRange(min=1),
              help="Tokens that a step processes in all, for model FLOP utilization.")  # fmt: skip
@click.option("--parameters", metavar="N", type=click.IntRange(min=1),
              help="Parameters of the model that each token uses, for the same.")  # fmt: skip
@click.option("--top", metavar="N", type=click.IntRange(min=1), default=5, show_default=True,
              help="Number of findings, kernels and operators in the text.")  # fmt: skip
@click.option("--fail-on", type=click.Choice(SEVERITIES),
              help="Exit with 1 if there is a finding of at least this severity.")  # fmt: skip
@click.option("--strict", is_flag=True,
              help="Stop if a rule crashes, instead of listing it as skipped.")  # fmt: skip
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show the complete report, and how long each stage took.",
)
def command(  # noqa: PLR0913  (one argument per option)
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str,
    force: bool,
    chosen: Mapping[str, Any],
    tokens_per_step: int | None,
    parameters: int | None,
    top: int,
    fail_on: str | None,
    strict: bool,
    verbose: bool,
) -> int:
    """Report why a recorded program is slow or memory-hungry, highest cost first.

    PATH is a trace of profkit or torch.profiler, a snapshot of the CUDA caching allocator, a memory
    record of profkit run, or a folder or an archive of them. There is one report per file, or one
    over the ranks of a job. It needs neither a GPU nor torch.
    """
    from profkit.readers.snapshot.worker_process import start_early

    entered = time.perf_counter_ns()
    check_target(output, force=force)
    start_early(paths[0])

    from profkit.api import render
    from profkit.cli._jobs import Analyzed, with_jobs
    from profkit.present.renderer import renderer, together
    from profkit.readers.stream import is_folder, place_of

    module = renderer(format_)
    options = {**layout(output), "top": top, "verbose": verbose}
    chosen = {
        **chosen,
        "strict": strict,
        "tokens_per_step": tokens_per_step,
        "parameters": parameters,
    }
    is_alone = len(paths) == 1 and not is_folder(place_of(paths[0]))
    with progress() as shown:

        def show(report: "Report", recording: "LoadedRecording") -> bytes:
            began = time.perf_counter_ns()
            shown.writing(format_)
            product = render(report, format_, recording=recording, **options)
            shown.took["render"] += time.perf_counter_ns() - began
            return product

        def analyzed(path: str) -> Analyzed:
            study = studied(path, chosen, shown)
            rank = None if is_alone else study.rank_report()
            # What may be one rank of a job is shown when all files are known.
            product = show(study.report, study.recording) if rank is None else None
            return Analyzed((path,), study.report, rank, product)

        every = with_jobs(list(each_of(paths, analyzed, shown)))
        products = [
            show(each.report, studied(each.paths[0], chosen, shown).recording)
            if each.product is None
            else each.product
            for each in every
        ]
        product = together(module, products)
    deliver(product, output, force=force)
    if output != STDOUT and sys.stderr.isatty():
        click.echo(f"profkit: wrote {output}", err=True)
    if verbose:
        _print_stages(shown.took, time.perf_counter_ns() - entered)
    if len(every) == 1:
        after_report(every[0].report, *every[0].paths, output=output, format_=format_)
    severe = at_least(fail_on)
    findings = (finding for each in every for finding in each.report.findings)
    return int(any(finding.severity in severe for finding in findings))


def _print_stages(took: Mapping[str, int], total_ns: int) -> None:
    """Print to stderr how long each stage of profkit took, longest first.

    Stages of several processes overlap, so that their sum can exceed the total.
    """
    click.echo(f"profkit: {format_ns(total_ns)} in total", err=True)
    for stage, ns in sorted(took.items(), key=lambda item: -item[1]):
        click.echo(f"  {format_ns(ns):>8}  {stage}", err=True)
