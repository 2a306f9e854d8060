"""Ring files among the paths of a command line: programs that crashed left their last steps."""

from typing import TYPE_CHECKING

import click

from profkit.cli._output import deliver, layout

if TYPE_CHECKING:
    from collections.abc import Sequence


def rings(paths: "Sequence[str]") -> list[str]:
    """The ring files of some paths if there are no recordings; those beside some are mentioned.

    Raises:
        LoadError: A folder cannot be read.
    """
    from profkit.errors import MissingFileError
    from profkit.readers.recordings import find_recordings
    from profkit.readers.ring.layout import SUFFIX
    from profkit.readers.ring.read import rings_in

    found = [each for path in paths for each in rings_in(path)]
    if not found or all(path.endswith(SUFFIX) for path in paths):
        return found
    try:
        find_recordings([path for path in paths if not path.endswith(SUFFIX)])
    except MissingFileError:
        return found
    who = "A process" if len(found) == 1 else f"{len(found)} processes"
    text = f"profkit: {who} left the last steps before the end: profkit analyze {found[-1]}"
    click.echo(text, err=True)
    return []


def show_last_steps(files: "Sequence[str]", format_: str, output: str, *, force: bool) -> None:
    """Write what ring files say in a format.

    Raises:
        LoadError: None can be read.
        UsageError: There is no such format of them.
    """
    from profkit.api import last_steps, render

    product = render(last_steps(files), format_, **layout(output))
    deliver(product, output, force=force)
