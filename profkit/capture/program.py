"""Runs a program in this process as ``python`` itself would.

It finds the same ``sys.argv``, ``sys.path[0]``, ``__main__`` and ``__file__``, and its tracebacks
begin with its own first line.
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

_STARTERS: Final = (PROFKIT_FOLDER, "<frozen runpy>", "<frozen importlib", runpy.__file__)
"""Beginnings of the file names of the frames that start the program."""


def run_script(path: str, args: Sequence[str]) -> BaseException | None:
    """Run a script, or a folder or archive with a ``__main__``.

    Args:
        path: The script's path as given by the user.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.

    Raises:
        UsageError: If the script does not exist.
    """
    if not Path(path).exists():
        raise UsageError(f"{path} does not exist.", "To run a module: profkit run -m MODULE")
    sys.argv[:] = [path, *args]
    if Path(path).is_dir() or not _is_source(path):
        return _run(lambda: runpy.run_path(path, run_name="__main__"))
    # The file keeps its name, but its folder is without links, as in python itself.
    full = str(Path(path).absolute())
    _set_first_path(str(Path(path).resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=full, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    # Compiled inside, so that a syntax error is the program's.
    return _run(lambda: exec(_compiled(full), module.__dict__))  # noqa: S102  (the user's program)


def run_module(name: str, args: Sequence[str]) -> BaseException | None:
    """Run a module or a package's ``__main__``.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.

    Raises:
        UsageError: If the module does not exist.
    """
    _set_first_path(str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise UsageError(f"Module {name} does not exist.", "To run a script: profkit run FILE")
    sys.argv[:] = [spec.origin or name, *args]
    return _run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _is_source(path: str) -> bool:
    """Whether a file is Python source: an archive with a ``__main__`` or a ``.pyc`` is not."""
    with Path(path).open("rb") as file:
        start = file.read(4)
    return not start.startswith((b"PK", importlib.util.MAGIC_NUMBER))


def _compiled(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _set_first_path(folder: str) -> None:
    """Replace the folder of this command by the program's, as ``python`` would set it."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[:1] = [folder]


def _run(start: Callable[[], object]) -> BaseException | None:
    try:
        start()
    except BaseException as error:  # noqa: BLE001  (however the program ends)
        return error.with_traceback(_program_frames(error.__traceback__))
    return None


def _program_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that only start the program."""
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_STARTERS):
            break
        traceback = traceback.tb_next
    return traceback
