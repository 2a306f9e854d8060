"""Writes a command's output to stdout or a file, in the layout that fits there."""

import contextlib
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from profkit.errors import OutputError
from profkit.folders import working_folder

STDOUT: Final = "-"
_WIDTH_UNKNOWN: Final = 100
_ASCII: Final = str.maketrans({"→": "->", "…": "~", "·": "-", "µ": "u"})


def layout(target: str = STDOUT) -> dict[str, Any]:
    """Return a renderer's options that depend on the target: a file, or ``-`` for stdout."""
    if target == STDOUT:
        return stream_layout(sys.stdout)
    return {"width": _WIDTH_UNKNOWN, "color": False, "unicode": True, "base": str(working_folder())}


def stream_layout(stream: TextIO | None) -> dict[str, Any]:
    """Return a renderer's options for ``sys.stdout`` or ``sys.stderr``, which may be closed.

    Raises:
        OutputError: The stream is None, since it is closed.
    """
    if stream is None:
        raise OutputError("Standard output is closed.", "Name a file with -o.")

    is_terminal = stream.isatty()
    # Python has several spellings of an encoding: UTF-8, utf8.
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    return {
        "width": columns_of(stream) if is_terminal else _WIDTH_UNKNOWN,
        "color": _wants_color(is_terminal=is_terminal),
        "unicode": encoding.startswith("utf"),
        "base": str(working_folder()),
    }


def columns_of(stream: TextIO) -> int:
    """Return the width of a stream's terminal: ``COLUMNS``, else the width that it reports."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", "0"))) > 0:
            return columns
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH_UNKNOWN
    return _WIDTH_UNKNOWN


def _wants_color(*, is_terminal: bool) -> bool:
    """Tell whether to use colors.

    Source: https://no-color.org, https://force-color.org.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal and os.environ.get("TERM") != "dumb"


def check_target(target: str, *, force: bool) -> None:
    """Check that a target can be written, before any work is done.

    Args:
        target: A file, or ``-`` for stdout.
        force: Whether an existing file is overwritten.

    Raises:
        OutputError: It exists, or its folder does not.
    """
    path = Path(target)
    if target == STDOUT or _is_special(path):
        return

    # Methods of Path raise for names that are too long; writing says why it fails.
    if os.path.isdir(path):  # noqa: PTH112
        raise OutputError(f"{target} is a folder.", "Name a file with -o.")
    if os.path.exists(path) and not force:  # noqa: PTH110
        raise OutputError(f"{target} already exists.", "Use --force to overwrite it.")
    if not os.path.isdir(path.parent):  # noqa: PTH112
        raise OutputError(f"There is no folder {path.parent}.", "Create it first.")


def deliver(product: bytes | Iterable[bytes], target: str, *, force: bool) -> None:
    """Write to stdout, or to a file, which is replaced only when it is complete.

    Args:
        product: The bytes, or an iterator of pieces.
        target: A file, or ``-`` for stdout.
        force: Whether an existing file is overwritten.

    Raises:
        OutputError: It cannot be written.
        BrokenPipeError: The reader of stdout closed it.
    """
    check_target(target, force=force)

    pieces = (product,) if isinstance(product, bytes) else product

    try:
        if target == STDOUT:
            # Text that was printed before precedes the bytes of the product.
            sys.stdout.flush()
            sys.stdout.buffer.writelines(pieces)
            sys.stdout.buffer.flush()
        elif _is_special(Path(target)):
            with Path(target).open("wb") as file:
                file.writelines(pieces)
        else:
            _write_atomically(Path(target), pieces)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = "Standard output" if target == STDOUT else target
        reason = error.strerror or str(error)
        hint = "Free some space or choose another place with -o."
        raise OutputError(f"{name} cannot be written: {reason}.", hint) from error


def _is_special(path: Path) -> bool:
    """Tell whether a path is a pipe or a device, which a rename would replace."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) and not os.path.isdir(path)  # noqa: PTH112
    except (OSError, ValueError):
        return False


def say(text: str) -> None:
    """Write text to stdout, in ASCII if its encoding is not Unicode.

    Raises:
        OutputError: It cannot be written.
        BrokenPipeError: The reader of stdout closed it.
    """
    if layout()["unicode"]:
        product = text.encode("utf-8", "backslashreplace")
    else:
        product = text.translate(_ASCII).encode("ascii", "backslashreplace")
    deliver(product, STDOUT, force=True)


def _write_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a temporary file in the same folder and rename it into place."""
    import tempfile

    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        # mkstemp makes files private; the only way to read the umask is to set it.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
