"""Files of last steps among the paths of a command line, which programs that crashed left."""

from typing import TYPE_CHECKING

import click

from profkit.cli._output import deliver, layout

if TYPE_CHECKING:
    from collections.abc import Sequence


def files_of_last_steps(paths: "Sequence[str]") -> list[str]:
    """The files of last steps in some paths without recordings; beside these they are mentioned.

    Raises:
        LoadError: A folder cannot be read.
    """
    from profkit.errors import MissingFileError
    from profkit.readers.last_steps.layout import SUFFIX, find_last_steps
    from profkit.readers.recordings import find_recordings

    found = [each for path in paths for each in find_last_steps(path)]
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
    """Write what files of last steps say in a format.

    Raises:
        LoadError: None can be read.
        UsageError: There is no such format of them.
    """
    from profkit.api import last_steps, render

    product = render(last_steps(files), format_, **layout(output))
    deliver(product, output, force=force)
