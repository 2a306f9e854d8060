"""``profkit view``: opens the report in a browser."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from profkit.cli._inputs import Input, read_jobs
from profkit.cli._newest import select_recordings
from profkit.cli._options import add_analysis_options, add_paths_argument
from profkit.cli._output import check_target, deliver
from profkit.cli._progress import progress
from profkit.cli._scale import Place, add_scale_options
from profkit.folders import cache_folder, make_own_folder, working_folder

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions

_FORMAT: Final = "html"
_MAX_PAGES: Final = 20
"""Older pages are removed from the cache."""


@click.command(
    short_help="Open the report in a browser.",
    epilog="\b\nExamples:\n  profkit view\n  profkit view traces/train/host_1.17.pt.trace.json.gz",
)
@add_paths_argument
@click.option("-o", "--output", metavar="FILE", help="Output file.  [default: in profkit's cache]")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open a browser.  [default: if there is a screen]",
)
@add_analysis_options
@add_scale_options
def command(
    *,
    paths: tuple[str, ...],
    output: str | None,
    force: bool,
    opens: bool | None,
    options: "AnalysisOptions",
    place: Place,
) -> int:
    """Write the report as one HTML page, print its path, and open it in a browser.

    PATH is a trace, a snapshot, a folder or an archive of them, or a report that profkit analyze
    saved as JSON. Without PATH the page is on the newest recording in $PROFKIT_DIR, else traces. It
    is self-contained: it needs neither the network nor other files.
    """
    from profkit.present.renderer import renderer, together

    if output is not None:
        check_target(output, force=force)
    selection = select_recordings(paths)
    with progress() as shown:
        products, names = [], []
        for read in read_jobs(selection, options, place, shown):
            shown.writing(_FORMAT)
            products.append(_page(read))
            names.append(read.name)
        product = together(renderer(_FORMAT), products)

    # One page has all recordings, and the name of the first.
    target = Path(output) if output is not None else _choose_page(names[0], selection.paths)

    deliver(product, str(target), force=force or output is None)
    page = target.absolute()
    click.echo(str(page))

    # Over ssh a browser would start on the wrong machine: say how to copy the page instead.
    if opens if opens is not None else has_screen():
        _open(page)
    elif opens is None and sys.stderr.isatty():
        import socket

        copy = shlex.join(["scp", f"{socket.gethostname()}:{page}", "."])
        click.echo(f"profkit: no screen here; on your own machine run: {copy}", err=True)
    return 0


def _page(read: Input) -> bytes:
    from profkit.api import render

    return render(read.report, _FORMAT, recording=read.recording, base=str(working_folder()))


def has_screen() -> bool:
    """Tell whether a browser started here is visible to the user; over ssh it is not."""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    if sys.platform in {"darwin", "win32"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.as_uri()):
        click.echo("profkit: no browser could be started; open the file yourself.", err=True)


def _choose_page(name: str, paths: tuple[str, ...]) -> Path:
    """Choose the file of a page in the cache, and remove the oldest pages.

    Raises:
        OutputError: The cache cannot be used.
    """
    import hashlib

    from profkit.errors import OutputError

    folder = cache_folder("pages")
    # Recordings of different folders may have the same name.
    key = "\0".join(str(Path(path).absolute()) for path in paths)
    digest = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    try:
        # Not readable by other users, since a report shows source lines.
        make_own_folder(folder)
        pages = sorted(folder.glob("*.html"), key=lambda page: page.stat().st_mtime)
        # The new page needs a place too.
        for page in pages[: max(0, len(pages) - _MAX_PAGES + 1)]:
            page.unlink(missing_ok=True)
    except OSError as error:
        message = f"{folder} cannot be used: {error.strerror or error}."
        raise OutputError(message, "Choose another place with -o.") from error
    return folder / f"{name}-{digest}.html"
