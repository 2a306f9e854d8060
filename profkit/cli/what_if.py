"""``profkit what-if``: predicts the step time with changes."""

from typing import TYPE_CHECKING, Any, Final

import click

from profkit.cli._options import (
    Size,
    add_no_cache_option,
    add_output_options,
    add_paths_argument,
    read_options,
)
from profkit.cli._output import check_target, deliver, layout
from profkit.cli._scale import Place, add_scale_options

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.engine.what_if_ranks import RanksChoice
    from profkit.model.what_if import JobPrediction, Prediction
    from profkit.readers.recordings import Recording

    _Result = Prediction | tuple[Prediction, ...] | JobPrediction

_EPILOG: Final = """\b
Examples:
  profkit what-if
  profkit what-if --remove SYN001
  profkit what-if trace.json.gz --remove SYN001
  profkit what-if trace.json.gz --remove SYN001@train.py:41 --no-data-wait
  profkit what-if trace.json.gz --scale 'nccl*=0.5' --scale aten::conv2d=0.8
  profkit what-if trace.json.gz --graph --format json -o prediction.json
  profkit what-if traces/train/
  profkit what-if traces/train/ --rank 3 --bandwidth all-gather=2
"""


class Factor(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A pattern and a factor: ``nccl*=0.5``."""

    name = "factor"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Split at the last ``=``."""
        pattern, equals, factor = str(value).rpartition("=")
        if not (pattern and equals):
            self.fail(f"{value!r} has no factor; write 'nccl*=0.5'.", param, ctx)
        try:
            return pattern, float(factor)
        except ValueError:
            message = f"{factor!r} in {value!r} is not a number; write 'nccl*=0.5'."
            self.fail(message, param, ctx)


class Bandwidth(Factor):
    """A factor for all collectives, or for a pattern of them: ``2``, ``all-gather=2``."""

    name = "bandwidth"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Split at the last ``=``, if there is one."""
        if "=" in str(value):
            return super().convert(value, param, ctx)
        try:
            return "", float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number; write 2, or 'all-gather=2'.", param, ctx)


@click.command(short_help="Predict the step time with changes.", epilog=_EPILOG)
@add_paths_argument
@click.option(
    "--remove",
    metavar="RULE[@FILE[:LINE]]",
    multiple=True,
    help="Remove the findings of a rule, by id, name or family; with @ only at a file or a line.",
)
@click.option(
    "--scale",
    metavar="PATTERN=FACTOR",
    multiple=True,
    type=Factor(),
    help="Multiply the time of everything with a matching name.",
)
@click.option("--graph", is_flag=True, help="Launch the device work of each step as one graph.")
@click.option("--no-data-wait", is_flag=True, help="Never wait for the next batch.")
@click.option(
    "--rank",
    "ranks",
    metavar="N",
    multiple=True,
    type=click.IntRange(min=0),
    help="In a job: make a rank as fast as the median of the others.",
)
@click.option(
    "--stage",
    "stages",
    metavar="N",
    multiple=True,
    type=click.IntRange(min=0),
    help="In a job: make a pipeline stage as fast as the mean of all ranks.",
)
@click.option("--even", is_flag=True, help="In a job: make all ranks as fast as their mean.")
@click.option("--no-waiting", is_flag=True, help="In a job: let no rank wait for another.")
@click.option(
    "--bandwidth",
    metavar="[PATTERN=]FACTOR",
    multiple=True,
    type=Bandwidth(),
    help="In a job: multiply the bandwidth of all collectives, or of a kind or process group.",
)
@add_scale_options
@add_output_options(click.Choice(("json", "text")))
@click.option(
    "--max-bytes",
    metavar="SIZE",
    type=Size(),
    help="Maximum decompressed size of the file, such as 20GiB.",
)
@add_no_cache_option
def command(  # noqa: PLR0913  (one argument per option)
    *,
    paths: tuple[str, ...],
    remove: tuple[str, ...],
    scale: tuple[tuple[str, float], ...],
    graph: bool,
    no_data_wait: bool,
    ranks: tuple[int, ...],
    stages: tuple[int, ...],
    even: bool,
    no_waiting: bool,
    bandwidth: tuple[tuple[str, float], ...],
    place: Place,
    format_: str,
    output: str,
    force: bool,
    max_bytes: int | None,
    no_cache: bool,
) -> int:
    """Predict the step time of a recorded program with changes, all of them made at once.

    The recording is replayed as a graph of dependencies: with changed durations, everything starts
    as soon as what it waited for in the recording has ended. The output is the step time before and
    after, and the parts of the critical path.

    PATTERN matches a whole name; * stands for any characters and ? for any one. Kernels and copies
    change alone. Operators, regions and Python functions change with all that happens during them
    on their thread, and with the kernels and copies that they launched; factor 0 also removes their
    waits for the device. Runtime calls change without what they launch. A pattern that matches
    kernels or copies does not change host events.

    --graph removes the time that host threads spend from the first to the last launch of a step,
    except for blocking calls and waits for data, and gives kernels the usual gap.

    PATH may also be the folder with the traces of the ranks of a job, which are replayed together
    with the changes that the options for a job state.

    Without any change, the output lists the usual ones, each alone: of a recording its findings,
    the waits for data and a graph, the one that saves most first; of a job its ranks.

    Of a folder with several runs the newest is taken; without PATH, the newest of $PROFKIT_DIR,
    else traces.
    """
    from profkit.cli._newest import select_run
    from profkit.engine.what_if_ranks import RanksChoice, check_bandwidth
    from profkit.errors import SeveralTracesError, UsageError

    check_target(output, force=force)
    options = read_options(max_bytes=max_bytes, no_cache=no_cache)
    of_job = RanksChoice(
        ranks, stages, even, not no_waiting, check_bandwidth(_by_pattern("bandwidth", bandwidth))
    )
    changes = {
        "remove": remove,
        "scale": _by_pattern("scale", scale),
        "graph": graph,
        "data_wait": not no_data_wait,
    }
    is_of_trace = bool(remove or scale or graph or no_data_wait)

    # Several files can only be the ranks of a job; an archive has to be read to know.
    recordings = list(select_run(paths).recordings)
    is_job = len(recordings) > 1
    if not is_job and not of_job.is_any:
        path = recordings[0].paths[0]
        try:
            result: _Result = (
                _predict_trace(path, changes, options)
                if is_of_trace
                else _predict_each(path, options)
            )
        except SeveralTracesError:
            is_job = True

    if is_job or of_job.is_any:
        if is_of_trace:
            raise UsageError(
                "--remove, --scale, --graph and --no-data-wait change a single trace.",
                "Give the trace of one rank, or an option of a job, such as --rank.",
            )
        result = _predict_job(recordings, of_job, place, options)

    deliver(_render(result, recordings[0].paths[0], format_, output), output, force=force)
    return 0


def _by_pattern(option: str, factors: tuple[tuple[str, float], ...]) -> dict[str, float]:
    """Collect factors by pattern.

    Raises:
        UsageError: A pattern is given twice.
    """
    from profkit.errors import UsageError

    patterns = [pattern for pattern, _ in factors]
    twice = [pattern for pattern in patterns if patterns.count(pattern) > 1]
    if twice:
        named = f"--{option} {twice[0]}".rstrip()
        raise UsageError(f"{named} is given twice.", "Give one factor for each pattern.")
    return dict(factors)


def _predict_trace(path: str, changes: dict[str, Any], options: "AnalysisOptions") -> "Prediction":
    from profkit.api import what_if
    from profkit.cli._progress import progress

    with progress() as shown:
        shown.reading(path)
        return what_if(
            path,
            **changes,
            thresholds=options.thresholds,
            limit_bytes=options.limit_bytes,
            on_progress=shown.on_progress,
        )


def _predict_each(path: str, options: "AnalysisOptions") -> "tuple[Prediction, ...]":
    from profkit.api import what_if_each
    from profkit.cli._progress import progress

    with progress() as shown:
        shown.reading(path)
        return what_if_each(path, options, shown.on_progress)


def _predict_job(
    recordings: "list[Recording]",
    choice: "RanksChoice",
    place: Place,
    options: "AnalysisOptions",
) -> "JobPrediction":
    from profkit.analysis.several import find_job
    from profkit.cli._progress import progress
    from profkit.engine.what_if_ranks import predict_job

    with place.scale() as scale, progress() as shown:
        return predict_job(find_job(recordings, options.limit_bytes, scale, shown), choice)


def _render(result: "_Result", path: str, format_: str, output: str) -> bytes:
    import msgspec

    from profkit.model.what_if import EACH_SCHEMA, JOB_SCHEMA, SCHEMA, JobPrediction
    from profkit.present.what_if import each_change_text, what_if_text
    from profkit.present.what_if_ranks import job_what_if_text

    style = layout(output)
    if isinstance(result, tuple):
        tree = {"schema": EACH_SCHEMA, "path": path, "cases": msgspec.to_builtins(result)}
        text = each_change_text(path, result, style["base"])
    elif isinstance(result, JobPrediction):
        tree = {"schema": JOB_SCHEMA, **msgspec.to_builtins(result)}
        text = job_what_if_text(result, style["base"])
    else:
        tree = {"schema": SCHEMA, **msgspec.to_builtins(result)}
        text = what_if_text(result, style["base"])

    if format_ == "json":
        return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"
    return text.encode("utf-8" if style["unicode"] else "ascii", "backslashreplace")
