"""``profkit analyze``: reports on existing recordings."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from profkit.cli._inputs import analyze_recordings, choose_newest, run_study
from profkit.cli._newest import select_recordings
from profkit.cli._next_command import after_report
from profkit.cli._options import (
    FormatChoice,
    Size,
    add_analysis_options,
    add_fail_on_option,
    add_output_options,
    add_paths_argument,
    add_top_option,
    at_least,
)
from profkit.cli._output import STDOUT, check_target, deliver, layout
from profkit.cli._progress import Progress, progress
from profkit.cli._scale import Place, add_scale_options
from profkit.units import format_ns

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.analysis.several import AnalysisRequest, Analyzed
    from profkit.present.renderer import Renderer


@click.command(
    short_help="Report why a recorded program is slow or memory-hungry.",
    epilog="\b\nExamples:\n  profkit analyze\n"
    "  profkit analyze traces/train/host_1.17.pt.trace.json.gz --top 10",
)
@add_paths_argument
@add_output_options(FormatChoice())
@add_analysis_options
@add_scale_options
@click.option(
    "--tokens-per-step",
    metavar="N",
    type=click.IntRange(min=1),
    help="Total tokens of a step, for model FLOP utilization.",
)
@click.option(
    "--parameters",
    metavar="N",
    type=click.IntRange(min=1),
    help="Parameters that each token uses, for model FLOP utilization.",
)
@add_top_option(5, "Number of findings, kernels and operators in the text.")
@click.option(
    "--budget-bytes",
    metavar="SIZE",
    type=Size(),
    default=0,
    help="Maximum size of the JSON, such as 8k; longer tables are cut.",
)
@click.option(
    "--cursor",
    metavar="TABLE:ROW",
    default="",
    help="Only the rows of a table from ROW on, such as findings:5.",
)
@add_fail_on_option()
@click.option(
    "--strict", is_flag=True, help="Stop if a rule crashes, instead of listing it as skipped."
)
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show the complete report.",
)
@click.option(
    "--timings", is_flag=True, help="Print how long each stage of the analysis and each rule took."
)
def command(  # noqa: PLR0913  (one argument per option)
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str,
    force: bool,
    options: "AnalysisOptions",
    place: Place,
    tokens_per_step: int | None,
    parameters: int | None,
    top: int,
    budget_bytes: int,
    cursor: str,
    fail_on: str | None,
    strict: bool,
    verbose: bool,
    timings: bool,
) -> int:
    """Report why a recorded program is slow or memory-hungry, highest cost first.

    PATH is a trace of profkit or torch.profiler, a snapshot of the CUDA caching allocator, a memory
    record of profkit run, a URL, or a folder, a glob or an archive of them. There is one report per
    recording, or one over the ranks of a job. Without PATH it is on the newest recording in
    $PROFKIT_DIR, else traces. It needs neither a GPU nor torch.
    """
    from profkit.readers.snapshot.worker_process import start_early

    entered = time.perf_counter_ns()
    check_target(output, force=force)
    if (budget_bytes or cursor) and format_ != "json":
        raise click.UsageError("--budget-bytes and --cursor need --format json.")

    # The process that unpickles a snapshot starts while the modules below are imported.
    if paths:
        start_early(paths[0])

    from profkit.analysis.several import AnalysisRequest
    from profkit.present.renderer import renderer, together

    module = renderer(format_)
    format_options: dict[str, Any] = {**layout(output), "top": top, "verbose": verbose}
    format_options |= {"budget_bytes": budget_bytes, "cursor": cursor}
    options = replace(
        options, strict=strict, tokens_per_step=tokens_per_step, parameters=parameters
    )
    # A format that draws the recording is rendered by the process that reads it.
    request = AnalysisRequest(options, format_ if _draws(module) else "", format_options)
    selection = select_recordings(paths)
    with place.scale() as scale, progress() as shown:
        analyses = choose_newest(
            analyze_recordings(selection.recordings, request, scale, shown), selection.newest
        )
        product = together(
            module, list(_render_all(analyses.reports, module, format_, request, shown))
        )

    deliver(product, output, force=force)
    if output != STDOUT:
        click.echo(f"profkit: wrote {output}", err=True)
    if timings:
        _print_stages(shown.took, time.perf_counter_ns() - entered)
    if len(analyses.reports) == 1:
        (analysis,) = analyses.reports
        after_report(analysis.report, *analysis.paths, output=output, format_=format_)

    # A finding decides the exit code first; a file that could not be read fails the command too.
    severe = at_least(fail_on)
    findings = (finding for analysis in analyses.reports for finding in analysis.report.findings)
    if any(finding.severity in severe for finding in findings):
        return 1
    return analyses.unread[0][1].exit_code if analyses.unread else 0


def _draws(module: "Renderer") -> bool:
    """Tell whether a renderer draws what a report does not contain."""
    return any(field.name == "recording" for field in fields(module.Options))


def _render_all(
    analyses: "Iterable[Analyzed]",
    module: "Renderer",
    format_: str,
    request: "AnalysisRequest",
    shown: Progress,
) -> Iterator[bytes]:
    """Render the reports, unless the process that read the recording has rendered it."""
    from profkit.present.renderer import options_of

    for analysis in analyses:
        began = time.perf_counter_ns()
        shown.writing(format_)
        product = analysis.product
        if product is None:
            format_options = dict(request.format_options)
            if request.format:
                files = analysis.paths[:1] if analysis.is_job else analysis.paths
                format_options["recording"] = run_study(files, request.options, shown).recording
            product = module.render(analysis.report, options_of(module, format_options))
        shown.took["render"] += time.perf_counter_ns() - began
        yield product


def _print_stages(took: Mapping[str, int], total_ns: int) -> None:
    """Print to stderr how long each stage of profkit took, longest first.

    Stages of several processes overlap, so that their sum can exceed the total.
    """
    click.echo(f"profkit: {format_ns(total_ns)} in total", err=True)
    for stage, ns in sorted(took.items(), key=lambda item: -item[1]):
        click.echo(f"  {format_ns(ns):>8}  {stage}", err=True)
