"""Runs a program in this process as ``python`` itself would.

Its ``sys.argv``, ``sys.path[0]``, ``__main__`` and ``__file__`` are what it would find there, and
its tracebacks begin with its own first line.
"""

import importlib.util
import io
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Final

from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.errors import UsageError

Runner = Callable[[], object]
"""Runs a program to its end."""

_STARTERS: Final = ("<frozen runpy>", "<frozen importlib", runpy.__file__)


def run_script(path: str, args: Sequence[str]) -> BaseException | None:
    """Run a script, or a folder or archive with a ``__main__``, and return how it ended.

    Args:
        path: The script, as the user wrote it.
        args: Its arguments.

    Returns:
        What it raised, with a traceback of its own frames alone, or None.

    Raises:
        UsageError: If there is no such script.
    """
    if not Path(path).exists():
        raise UsageError(
            f"There is no script {path}.", "A module is run with: profkit run -m MODULE"
        )
    sys.argv[:] = [path, *args]
    if Path(path).is_dir() or not _is_source(path):
        return _ended(lambda: runpy.run_path(path, run_name="__main__"))
    # The file by its own name, its folder without links: as python itself does.
    full = str(Path(path).absolute())
    _set_first_path(str(Path(path).resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=full, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module

    def run() -> None:
        exec(_compiled(full), module.__dict__)  # noqa: S102  (what the user asked for)

    return _ended(run)


def run_module(name: str, args: Sequence[str]) -> BaseException | None:
    """Run a module or a package's ``__main__``, and return how it ended.

    Args:
        name: The module's name.
        args: Its arguments.

    Returns:
        What it raised, with a traceback of its own frames alone, or None.

    Raises:
        UsageError: If there is no such module.
    """
    _set_first_path(str(Path.cwd()))
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UsageError(f"There is no module {name}.", "A script is run with: profkit run FILE")
    sys.argv[:] = [found.origin or name, *args]
    return _ended(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _is_source(path: str) -> bool:
    """Whether a file is Python's text: an archive with a ``__main__`` or a ``.pyc`` is not."""
    with Path(path).open("rb") as file:
        start = file.read(4)
    return not start.startswith((b"PK", importlib.util.MAGIC_NUMBER))


def _compiled(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _set_first_path(folder: str) -> None:
    """Put the program's folder where ``python`` would, in place of that of this command."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[:1] = [folder]


def _ended(run: Runner) -> BaseException | None:
    try:
        run()
    except BaseException as error:  # noqa: BLE001  (the program's own end, whatever it is)
        return error.with_traceback(_own_frames(error.__traceback__))
    return None


def _own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that only start the program."""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith((PROFKIT_FOLDER, *_STARTERS)):
            break
        traceback = traceback.tb_next
    return traceback
