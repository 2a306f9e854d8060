"""Options of several commands, and those whose values are found at run time."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from profkit.cli._suggest import did_you_mean

if TYPE_CHECKING:
    from profkit.present.renderer import Renderer


class FormatChoice(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """The name of a renderer. Only that one is imported, unless all have to be named.

    Args:
        of_recordings: Whether also those are meant that hand on the recording itself.
    """

    name = "format"

    def __init__(self, *, of_recordings: bool = False) -> None:
        self._of_recordings = of_recordings

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002  (click's signature)
        """The names of all renderers, as ``[json|text]``."""
        return f"[{'|'.join(self._known())}]"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Check that there is such a renderer."""
        name = str(value)
        if not self._is_known(name):
            known = self._known()
            there = ", ".join(known)
            meant = did_you_mean(name, known)
            self.fail(f"There is no report format {name!r}, only {there}.{meant}", param, ctx)
        return name

    def _is_known(self, name: str) -> bool:
        from profkit.errors import UsageError
        from profkit.present.renderer import renderer

        try:
            return self._offers(renderer(name))
        except UsageError:
            return False

    def _offers(self, module: "Renderer") -> bool:
        return self._of_recordings or module.INFO.shows == "report"

    def _known(self) -> tuple[str, ...]:
        from profkit.present.renderer import renderers

        return tuple(each.INFO.name for each in renderers() if self._offers(each))


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A number of bytes: ``500000``, ``64MB``, ``20GiB``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read a number and its unit."""
        match = _SIZE.match(str(value))
        if match is None:
            self.fail(f"{value!r} is no size; write 500000, 64MB or 20GiB.", param, ctx)
        base = 1024 if match["binary"] else 1000
        power = "KMGT".index(match["prefix"].upper()) + 1 if match["prefix"] else 0
        return int(float(match["number"]) * base**power)


_SIZE = re.compile(
    r"^\s*(?P<number>\d+(\.\d+)?)\s*((?P<prefix>[KMGT])(?P<binary>i)?)?B?\s*$", re.IGNORECASE
)


def _split_rules(
    ctx: click.Context,  # noqa: ARG001  (click's signature)
    param: click.Parameter,  # noqa: ARG001  (click's signature)
    values: Sequence[str],
) -> tuple[str, ...]:
    """Rules given as ids, names or beginnings of ids, several of them behind commas.

    Args:
        ctx: The command's context.
        param: The option.
        values: Its values, one for each time that it was given.
    """
    return tuple(w.strip() for value in values for w in value.split(",") if w.strip())


def reading_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that say which rules judge a file, and how large it may be.

    It gets their values as one argument ``chosen``: what :func:`profkit.api.study` is told.

    Args:
        command: The command's function, which takes its arguments by name.
    """

    @functools.wraps(command)
    def gathered(
        *,
        select: tuple[str, ...],
        ignore: tuple[str, ...],
        max_bytes: int | None,
        **others: object,
    ) -> int:
        chosen = {"select": select, "ignore": ignore, "limit_bytes": max_bytes}
        return command(chosen=chosen, **others)

    chosen_by = (
        click.option("--select", metavar="RULE", multiple=True, callback=_split_rules,
                     help="Only these rules: ids, names, or families such as SYN."),
        click.option("--ignore", metavar="RULE", multiple=True, callback=_split_rules,
                     help="All rules but these."),
        click.option("--max-bytes", metavar="SIZE", type=Size(),
                     help="How large a file may be when it is unpacked, such as 20GiB."),
    )  # fmt: skip
    with_options: Callable[..., int] = gathered
    for option in reversed(chosen_by):
        with_options = option(with_options)
    return with_options
