"""``profkit what-if``: predicts the step time with changes."""

import click
import msgspec

from profkit.cli._options import Size
from profkit.cli._output import STDOUT, check_target, deliver, layout

_EPILOG = """\b
Examples:
  profkit what-if trace.json.gz --remove SYN001
  profkit what-if trace.json.gz --remove SYN001@train.py:41 --no-data-wait
  profkit what-if trace.json.gz --scale 'nccl*=0.5' --scale aten::conv2d=0.8
  profkit what-if trace.json.gz --graph --format json -o prediction.json
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


@click.command(short_help="Predict the step time with changes.", epilog=_EPILOG)
@click.argument("path", metavar="TRACE")
@click.option("--remove", metavar="RULE[@FILE[:LINE]]", multiple=True,
              help="Without the findings of a rule, given by id, name or family; with @ only those "
                   "at a file or a line.")  # fmt: skip
@click.option("--scale", metavar="PATTERN=FACTOR", multiple=True, type=Factor(),
              help="Multiply the time of everything of that name.")  # fmt: skip
@click.option("--graph", is_flag=True, help="Launch the device work of each step as one graph.")
@click.option("--no-data-wait", is_flag=True, help="Never wait for the next batch.")
@click.option("--format", "format_", type=click.Choice(("json", "text")), default="text",
              help="Output format.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", default=STDOUT,
              help="Output file; - is stdout.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--max-bytes", metavar="SIZE", type=Size(),
              help="Maximum decompressed size of the file, such as 20GiB.")  # fmt: skip
def command(  # noqa: PLR0913  (one argument per option)
    *,
    path: str,
    remove: tuple[str, ...],
    scale: tuple[tuple[str, float], ...],
    graph: bool,
    no_data_wait: bool,
    format_: str,
    output: str,
    force: bool,
    max_bytes: int | None,
) -> int:
    """Predict the step time of a recorded program with changes, all of them made at once.

    The recording is replayed as a graph of dependencies: with changed durations, everything starts
    as soon as what it waited for in the recording has ended. The output is the step time before and
    after, and what the critical path consists of.

    PATTERN matches a whole name; * stands for any characters and ? for any one. Kernels and copies
    change alone. Operators, regions and Python functions change with all that happens during them
    on their thread, and with the kernels and copies that they launched; factor 0 also removes their
    waits for the device. Runtime calls change without what they launch. A pattern that matches
    kernels or copies does not change host events.

    --graph removes the time that host threads spend from the first to the last launch of a step,
    except for blocking calls and waits for data, and gives kernels the usual gap.
    """
    from profkit.api import what_if
    from profkit.cli._options import chosen_rules
    from profkit.cli._progress import progress
    from profkit.errors import UsageError
    from profkit.model.what_if import SCHEMA
    from profkit.present.what_if import what_if_text

    check_target(output, force=force)
    patterns = [pattern for pattern, _ in scale]
    if twice := next((each for each in patterns if patterns.count(each) > 1), None):
        raise UsageError(f"--scale {twice} is given twice.", "Give one factor for each pattern.")
    with progress() as shown:
        shown.reading(path)
        result = what_if(
            path,
            remove=remove,
            scale=dict(scale),
            graph=graph,
            data_wait=not no_data_wait,
            thresholds=chosen_rules()["thresholds"],
            limit_bytes=max_bytes,
            on_progress=shown.on_progress,
        )
    if format_ == "json":
        tree = {"schema": SCHEMA, **msgspec.to_builtins(result)}
        product = msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"
    else:
        style = layout(output)
        text = what_if_text(result, style["base"])
        product = text.encode("utf-8" if style["unicode"] else "ascii", "backslashreplace")
    deliver(product, output, force=force)
    return 0
