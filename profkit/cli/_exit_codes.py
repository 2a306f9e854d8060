"""Turns errors into messages and exit codes. Nothing else in profkit prints errors.

::

    0    no finding at or above --fail-on
    1    a finding at or above --fail-on
    2    invalid usage
    3    a file cannot be read
    4    recording failed
    5    a result cannot be written
    6    a plugin is broken
    70   a bug in profkit
    130  Ctrl-C
    141  the reader of stdout closed it
"""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import Final, TextIO

import click

from profkit._version import __version__
from profkit.errors import LoadError, OutputError, ProfkitError

USAGE: Final = 2
BUG: Final = 70
INTERRUPTED: Final = 130
READER_GONE: Final = 141
_TOO_MANY_FILES: Final = (errno.EMFILE, errno.ENFILE)


def run_guarded(run: Callable[[], int]) -> int:
    """Run a function and turn any exception into a message on stderr and an exit code.

    Args:
        run: Returns the exit code if it succeeds.

    Raises:
        SystemExit: Raised by ``run``, and not changed.
    """
    try:
        code = run()
        flush(sys.stdout)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError, ValueError):
            error.show()
        code = USAGE
    except ProfkitError as error:
        print_error(error)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        echo("profkit: interrupted.")
        code = INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return READER_GONE
    except Exception as error:  # noqa: BLE001  (every bug is reported here)
        # Printing to a full disk fails anywhere in the command, and is not a bug. Nor is a limit
        # of the shell on open files.
        if isinstance(error, OSError) and not _is_writable(sys.stdout):
            error = OutputError(f"Standard output cannot be written: {error.strerror}.")
            print_error(error)
            code = OutputError.exit_code
        elif isinstance(error, OSError) and error.errno in _TOO_MANY_FILES:
            print_error(LoadError("Too many files are open.", "Raise the limit: `ulimit -n 1024`."))
            code = LoadError.exit_code
        else:
            print_bug(error)
            code = BUG

    if not _is_writable(sys.stdout):
        discard(sys.stdout)
    return code


def flush(stream: TextIO | None) -> None:
    """Flush a standard stream, which a program that was run may have closed."""
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


def echo(text: str) -> None:
    """Print a line to stderr. What cannot be printed is dropped: no exit code depends on it."""
    try:
        click.echo(text, err=True)
    except (OSError, ValueError):
        discard(sys.stderr)


def print_error(error: ProfkitError) -> None:
    """Print an error's message and hint to stderr."""
    echo(f"profkit: {error.message}")
    if error.hint:
        echo(f"  hint: {error.hint}")


def _is_writable(stream: TextIO | None) -> bool:
    """Tell whether a stream's buffered output can be flushed."""
    try:
        flush(stream)
    except OSError:
        return False
    return True


def discard(stream: TextIO | None) -> None:
    """Drop what cannot be written, or else Python fails at exit, with a message and code 120."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


def print_bug(error: BaseException) -> None:
    """Print that an error is a bug of profkit, and where its traceback is."""
    kind = type(error).__name__
    reason = " ".join(str(error).split())
    what = f"{kind}: {reason}" if reason else kind
    echo(f"profkit: this is a bug in profkit {__version__} ({what}).")

    text = "".join(traceback.format_exception(error))
    if os.environ.get("PROFKIT_DEBUG", "0") not in {"", "0"}:
        echo(text)
        hint = "please report it with the lines above"
    elif path := _write_traceback(text):
        hint = f"please report it with the file {path}"
    else:
        hint = "run it again with PROFKIT_DEBUG=1 and report the output"
    echo(f"  hint: {hint}{_issue_tracker()}.")


def _write_traceback(text: str) -> str | None:
    """Write a traceback to a new file and return its path, or None if that fails."""
    import tempfile  # it is slow too

    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="profkit-bug-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            file.write(f"profkit {__version__}, Python {sys.version}\n{sys.argv}\n\n{text}")
            return file.name
    except OSError:
        return None


def _issue_tracker() -> str:
    """Return `` at URL`` if the installed package's metadata has an issue tracker, else empty."""
    try:
        import importlib.metadata  # it is slow, and a program waits for this module

        urls = importlib.metadata.metadata("profkit").get_all("Project-URL") or []
    except (ImportError, OSError):  # not installed, or no file can be opened
        return ""
    for url in urls:
        label, _, address = url.partition(", ")
        if label.lower() in {"issues", "bug tracker"}:
            return f" at {address}"
    return ""
