"""How the command ends: which exit code, and what is said. Nothing else in profkit prints errors.

::

    0    ran, and found nothing at or above --fail-on
    1    found something at or above --fail-on
    2    an argument that cannot be used
    3    a file that cannot be read
    4    recording is not possible
    5    a result cannot be written
    6    a third party's rule or renderer is wrong
    70   a bug in profkit
    130  Ctrl-C
    141  whoever read the output went away
"""

import contextlib
import importlib.metadata
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Final, TextIO

import click

from profkit._version import __version__
from profkit.errors import ProfkitError

USAGE: Final = 2
BUG: Final = 70
INTERRUPTED: Final = 130
READER_GONE: Final = 141


def guarded(run: Callable[[], int]) -> int:
    """Call a function and turn whatever it raises into a message on stderr and an exit code.

    Args:
        run: What to do; returns the exit code when all went well.

    Raises:
        SystemExit: What ``run`` raises of it passes through untouched.
    """
    try:
        code = run()
        flush(sys.stdout)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.ClickException as error:
        error.show()
        code = USAGE
    except ProfkitError as error:
        say_error(error)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("profkit: stopped.", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        _leave_quietly()
        code = READER_GONE
    except Exception as error:  # noqa: BLE001  (the one place where every bug ends)
        _say_bug(error)
        code = BUG
    return code


def flush(stream: TextIO | None) -> None:
    """Write out what a standard stream holds; a program that was run may have closed it."""
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


def say_error(error: ProfkitError) -> None:
    """Print an error's sentence and its hint to stderr."""
    click.echo(f"profkit: {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


def _leave_quietly() -> None:
    """Keep Python from complaining, on its way out, of a pipe that nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_bug(error: BaseException) -> None:
    kind = type(error).__name__
    reason = " ".join(str(error).split())
    what = f"{kind}: {reason}" if reason else kind
    click.echo(f"profkit: this is a bug in profkit {__version__} ({what}).", err=True)
    text = "".join(traceback.format_exception(error))
    if os.environ.get("PROFKIT_DEBUG", "0") not in {"", "0"}:
        click.echo(text, err=True)
        click.echo(f"  hint: please report it with the lines above{_where_to_report()}.", err=True)
        return
    path = _write_traceback(text)
    if path:
        hint = f"please report it with the file {path}{_where_to_report()}."
    else:
        hint = f"run it again with PROFKIT_DEBUG=1 and report what it says{_where_to_report()}."
    click.echo(f"  hint: {hint}", err=True)


def _write_traceback(text: str) -> str | None:
    """Write a traceback to a file of its own and return its path, or None where that fails."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="profkit-bug-", suffix=".txt", delete=False, encoding="utf-8",
            errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(f"profkit {__version__}, Python {sys.version}\n{sys.argv}\n\n{text}")
            return file.name
    except OSError:
        return None


def _where_to_report() -> str:
    """`` at URL`` when the installed package tells where its issues are kept, else nothing."""
    try:
        urls = importlib.metadata.metadata("profkit").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    for url in urls:
        label, _, address = url.partition(", ")
        if label.lower() in {"issues", "bug tracker"}:
            return f" at {address}"
    return ""
