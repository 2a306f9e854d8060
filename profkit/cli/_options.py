"""Options of several commands, and option types whose values are found at run time."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from profkit.names import did_you_mean
from profkit.patterns import regex

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.present.renderer import Renderer

Command = Callable[..., int]
Decorator = Callable[[Command], Command]


class FormatChoice(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """The name of a renderer, which alone is imported, unless all names are listed.

    Args:
        of_recordings: Whether renderers that export the recording itself are included.
        result: The result that is shown instead of a report: ``check``, ``difference``,
            ``explanation`` or ``history``.
    """

    name = "format"

    def __init__(self, *, of_recordings: bool = False, result: str = "") -> None:
        self._of_recordings = of_recordings
        self._result = result

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002  (click's signature)
        """Return the names of all renderers, as ``[json|text]``."""
        return f"[{'|'.join(self._names())}]"

    def get_missing_message(
        self,
        param: click.Parameter,  # noqa: ARG002  (click's signature)
        ctx: click.Context | None = None,  # noqa: ARG002
    ) -> str:
        """Return the formats to choose from."""
        return f"Choose one of {', '.join(self._names())}."

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Check that there is such a renderer."""
        name = str(value)
        if not self._is_known(name):
            names = self._names()
            suggestion = did_you_mean(name, names)
            message = f"There is no report format {name!r}, only {', '.join(names)}.{suggestion}"
            self.fail(message, param, ctx)
        return name

    def _is_known(self, name: str) -> bool:
        from profkit.errors import UsageError
        from profkit.present.renderer import renderer

        try:
            return self._offers(renderer(name))
        except UsageError:
            return False

    def _offers(self, module: "Renderer") -> bool:
        if self._result:
            from profkit.present.renderer import offers_result

            return offers_result(module, self._result)
        return self._of_recordings or module.INFO.shows == "report"

    def _names(self) -> tuple[str, ...]:
        from profkit.present.renderer import renderers

        return tuple(module.INFO.name for module in renderers() if self._offers(module))


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A number of bytes: ``500000``, ``64MB``, ``20GiB``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse a number and its unit."""
        match = _SIZE.match(str(value))
        if match is None:
            self.fail(f"{value!r} is not a size; write 500000, 64MB or 20GiB.", param, ctx)

        base = 1024 if match["binary"] else 1000
        power = "KMGT".index(match["prefix"].upper()) + 1 if match["prefix"] else 0
        return int(float(match["number"]) * base**power)


_SIZE: Final = regex(
    r"^\s*(?P<number>\d+(\.\d+)?)\s*((?P<prefix>[KMGT])(?P<binary>i)?)?B?\s*$", re.IGNORECASE
)


def at_least(severity: str | None) -> tuple[str, ...]:
    """Return the severities from one on, for ``--fail-on``; none for None."""
    from profkit.model.finding import SEVERITIES

    return () if severity is None else SEVERITIES[SEVERITIES.index(severity) :]


def _split_rules(
    ctx: click.Context,  # noqa: ARG001  (click's signature)
    param: click.Parameter,  # noqa: ARG001  (click's signature)
    values: Sequence[str],
) -> tuple[str, ...]:
    """Split comma-separated rules of an option that can be given several times."""
    return tuple(w.strip() for value in values for w in value.split(",") if w.strip())


def read_options(
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    *,
    max_bytes: int | None = None,
    no_cache: bool = False,
) -> "AnalysisOptions":
    """Read ``pyproject.toml``, and complete its options by those of the command line.

    The size of the cache is set for the process.

    Raises:
        UsageError: The configuration is not valid.
    """
    from dataclasses import replace

    from profkit.analysis.config import read_config
    from profkit.folders import limit_cache

    config = read_config()
    limit_cache(0 if no_cache else config.cache_bytes)
    return replace(config.options.with_rules(select, ignore), limit_bytes=max_bytes)


def complete_files(
    ctx: click.Context,  # noqa: ARG001  (click's signature)
    param: click.Parameter,  # noqa: ARG001  (click's signature)
    incomplete: str,
) -> list[CompletionItem]:
    """Have the shell complete the names of files and folders."""
    return [CompletionItem(incomplete, type="file")]


def add_options(command: Command, *options: Decorator) -> Command:
    """Add options to a command, which lists them in this order."""
    # Decorators apply from the last to the first.
    for option in reversed(options):
        command = option(command)
    return command


add_paths_argument: Final[Decorator] = click.argument(
    "paths", metavar="[PATH]...", nargs=-1, shell_complete=complete_files
)
"""Adds the paths of recordings, without which the newest one is taken."""


def _locate_program(_context: click.Context, _option: click.Parameter, run: str | None) -> str:
    from profkit.capture.live.search import locate_program

    return locate_program(run)


add_run_argument: Final[Decorator] = click.argument(
    "run", metavar="[RUN]", required=False, callback=_locate_program
)
"""Adds the folder of the program that a command asks, or the file of one of its processes."""
add_no_cache_option: Final[Decorator] = click.option(
    "--no-cache", is_flag=True, help="Neither use nor fill the cache of large recordings."
)
"""Adds ``--no-cache``, for :func:`read_options`."""


def add_top_option(default: int, text: str) -> Decorator:
    """Add ``--top``: how many rows are shown, of what the help text says."""
    return click.option(
        "--top",
        metavar="N",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help=text,
    )


def add_fail_on_option(finding: str = "there is a finding of") -> Decorator:
    """Add ``--fail-on``, for :func:`at_least`: the severity of findings with which to exit with 1.

    Args:
        finding: Which findings, in the help text.
    """
    from profkit.model.finding import SEVERITIES  # a program waits for this module

    return click.option(
        "--fail-on",
        type=click.Choice(SEVERITIES),
        help=f"Exit with 1 if {finding} at least this severity.",
    )


def add_format_option(formats: "click.ParamType[Any]") -> Decorator:
    """Add ``--format``, by default text."""
    return click.option("--format", "format_", type=formats, default="text", help="Output format.")


add_text_or_json_option: Final[Decorator] = add_format_option(click.Choice(("text", "json")))


def add_output_options(formats: "click.ParamType[Any]") -> Decorator:
    """Add the options of a command that writes one product: its format, its file.

    Args:
        formats: The type of the option for the format.
    """
    from profkit.cli._output import STDOUT

    def with_output_options(command: Command) -> Command:
        return add_options(
            command,
            add_format_option(formats),
            click.option(
                "-o", "--output", metavar="FILE", default=STDOUT, help="Output file; - is stdout."
            ),
            click.option("--force", is_flag=True, help="Overwrite FILE."),
        )

    return with_output_options


def add_analysis_options(command: Command) -> Command:
    """Add the options that choose the rules, limit the size of files, and turn the cache off.

    Args:
        command: The command's function. Its argument ``options`` gets the
            :class:`~profkit.analysis.options.AnalysisOptions` of ``pyproject.toml`` and the command
            line.
    """

    # Click passes one argument for each option; a command hands all of them on as one value.
    @functools.wraps(command)
    def with_analysis_options(
        *,
        select: tuple[str, ...],
        ignore: tuple[str, ...],
        max_bytes: int | None,
        no_cache: bool,
        **others: object,
    ) -> int:
        options = read_options(select, ignore, max_bytes=max_bytes, no_cache=no_cache)
        return command(options=options, **others)

    return add_options(
        with_analysis_options,
        click.option(
            "--select",
            metavar="RULE",
            multiple=True,
            callback=_split_rules,
            help="Run only these rules: ids, names, or families such as SYN.",
        ),
        click.option(
            "--ignore",
            metavar="RULE",
            multiple=True,
            callback=_split_rules,
            help="Run all rules except these.",
        ),
        click.option(
            "--max-bytes",
            metavar="SIZE",
            type=Size(),
            help="Maximum decompressed size of a file, such as 20GiB.",
        ),
        add_no_cache_option,
    )
