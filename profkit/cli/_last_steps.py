"""Files of last steps among the paths of a command line, which programs that crashed left."""

from typing import TYPE_CHECKING

import click

from profkit.cli._output import deliver, layout

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_last_steps(paths: "Sequence[str]") -> list[str]:
    """Find the files of last steps in some paths without recordings, else only mention them.

    Raises:
        LoadError: A folder cannot be read.
    """
    from profkit.errors import MissingFileError
    from profkit.readers.last_steps.layout import SUFFIX, last_steps_files
    from profkit.readers.recordings import find_recordings

    files = [file for path in paths for file in last_steps_files(path)]
    if not files or all(path.endswith(SUFFIX) for path in paths):
        return files
    # Recordings in the same folders come first: they are what the user asks for.
    try:
        find_recordings([path for path in paths if not path.endswith(SUFFIX)])
    except MissingFileError:
        return files

    who = "A process" if len(files) == 1 else f"{len(files)} processes"
    text = f"profkit: {who} left the last steps before the end: profkit analyze {files[-1]}"
    click.echo(text, err=True)
    return []


def show_last_steps(files: "Sequence[str]", format_: str, output: str, *, force: bool) -> None:
    """Write files of last steps in a format.

    Raises:
        LoadError: No file can be read.
        UsageError: There is no such format of them.
    """
    from profkit.api import last_steps, render

    product = render(last_steps(files), format_, **layout(output))
    deliver(product, output, force=force)
