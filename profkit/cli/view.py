"""``profkit view``: the report as a page in a browser."""

import hashlib
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from profkit.cli._inputs import Read, read_all
from profkit.cli._options import reading_options
from profkit.cli._output import check_target, deliver
from profkit.cli._progress import progress

_FORMAT: Final = "html"
_MOST_PAGES: Final = 20
"""So many pages stay; a page can be made again."""


@click.command(
    short_help="Open the report in a browser.",
    epilog="\b\nExample: profkit view traces/train/host_1.17.pt.trace.json.gz",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE",
              help="Where to keep the page.  [default: among profkit's cached files]")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--open/--no-open", "opens", default=None,
              help="Whether to open a browser.  [default: where there is a screen]")  # fmt: skip
@reading_options
def command(
    *,
    paths: tuple[str, ...],
    output: str | None,
    force: bool,
    opens: bool | None,
    chosen: Mapping[str, Any],
) -> int:
    """Write the report as one HTML page, print where it is, and open it in a browser.

    PATH is a trace, a snapshot, a folder or an archive of them, or a report that profkit analyze
    saved as JSON. The page needs no network and no other file: it can be sent to anybody.
    """
    from profkit.present.renderer import renderer, together

    if output is not None:
        check_target(output, force=force)
    with progress() as shown:
        products, names = [], []
        for read in read_all(paths, chosen, shown):
            shown.writing(_FORMAT)
            products.append(_page(read))
            names.append(read.name)
        product = together(renderer(_FORMAT), products)
    place = Path(output) if output is not None else _kept(names[0], paths)
    deliver(product, str(place), force=force or output is None)
    page = place.absolute()
    click.echo(str(page))
    if opens if opens is not None else has_screen():
        _open(page)
    elif opens is None and sys.stderr.isatty():
        click.echo(f"profkit: no screen here; on your own machine: {_copied(page)}", err=True)
    return 0


def _page(read: Read) -> bytes:
    from profkit.api import render

    return render(read.report, _FORMAT, recording=read.recording, base=str(Path.cwd()))


def has_screen() -> bool:
    """Whether a browser that is started here is seen by whoever typed the command.

    Over ssh it would open on the other machine, or in the terminal itself.
    """
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
        click.echo("profkit: no browser could be started; open the file by hand.", err=True)


def _copied(page: Path) -> str:
    """A command that brings the page to the machine that somebody sits at."""
    return shlex.join(["scp", f"{socket.gethostname()}:{page}", "."])


def _kept(name: str, paths: tuple[str, ...]) -> Path:
    """Where the page of some paths is kept, the oldest ones given up for it.

    Raises:
        OutputError: There is no place for it.
    """
    from profkit.errors import OutputError

    # A relative one is to be ignored: XDG Base Directory Specification.
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = named if named.is_absolute() else Path.home() / ".cache"
    folder = cache / "profkit" / "pages"
    key = "\0".join(str(Path(path).absolute()) for path in paths)
    digest = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    try:
        # What a program does is nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        pages = sorted(folder.glob("*.html"), key=lambda page: page.stat().st_mtime)
        for page in pages[: max(0, len(pages) - _MOST_PAGES + 1)]:
            page.unlink(missing_ok=True)
    except OSError as error:
        message = f"{folder} cannot be used: {error.strerror or error}."
        raise OutputError(message, "Choose another place with -o.") from error
    return folder / f"{name}-{digest}.html"
