"""Runs a program in this process as ``python`` itself would.

It finds the same ``sys.argv``, ``sys.path[0]``, ``__main__`` and ``__file__``, and its tracebacks
begin with its own first line.
"""

import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType, TracebackType
from typing import Final

from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.folders import working_folder

_STARTERS: Final = (PROFKIT_FOLDER, "<frozen runpy>", "<frozen importlib", runpy.__file__)
"""Beginnings of the file names of the frames that start the program."""
_RUNPY: Final = ("<frozen runpy>", runpy.__file__, __file__)


class CannotStartError(Exception):
    """A program that does not exist, with the message and exit code of ``python`` itself.

    Attributes:
        exit_code: 2 for a script that cannot be opened, 1 for anything else.
    """

    def __init__(self, reason: object, exit_code: int) -> None:
        super().__init__(f"{sys.executable}: {reason}")
        self.exit_code = exit_code


def run_script(path: str, args: Sequence[str]) -> BaseException | None:
    """Run a script, or a folder or archive with a ``__main__``.

    Args:
        path: The script's path as given by the user.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.

    Raises:
        CannotStartError: If it does not exist.
    """
    full = path if Path(path).is_absolute() else f"{working_folder()}{os.sep}{path}"
    sys.argv[:] = [path, *args]
    try:
        is_source = not Path(path).is_dir() and _is_source(path)
    except OSError as error:
        reason = f"can't open file {full!r}: [Errno {error.errno}] {error.strerror}"
        raise CannotStartError(reason, 2) from None
    if not is_source:
        return _run(lambda: runpy.run_path(full, run_name="__main__"))
    # The file keeps its name, but its folder is without links, as in python itself.
    _set_first_path(str(Path(path).resolve().parent))
    # Compiled inside, so that a syntax error is the program's.
    return _run(lambda: _execute(_compiled(full), __file__=full, __cached__=None))


def run_code(source: str, args: Sequence[str]) -> BaseException | None:
    """Run source code, as ``python -c`` does.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.
    """
    _set_first_path("")
    sys.argv[:] = ["-c", *args]
    return _run(lambda: _execute(compile(source, "<string>", "exec", dont_inherit=True)))


def run_module(name: str, args: Sequence[str]) -> BaseException | None:
    """Run a module or a package's ``__main__``.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.

    Raises:
        CannotStartError: If it does not exist.
    """
    _set_first_path(str(working_folder()))
    sys.argv[:] = ["-m", *args]

    def start() -> None:
        # Private, but the same since Python 3.4: no public function imports the parents only once.
        _, spec, _ = runpy._get_module_details(name)  # type: ignore[attr-defined]  # noqa: SLF001
        sys.argv[0] = spec.origin
        runpy.run_module(name, run_name="__main__", alter_sys=True)

    return _run(start)


def _execute(code: CodeType, **names: object) -> None:
    """Execute a program in a new ``__main__``."""
    module = ModuleType("__main__")
    module.__dict__.update(names, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102  (the user's program)


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
        if isinstance(error, ImportError) and _is_by_runpy(error.__traceback__):
            raise CannotStartError(error, 1) from None
        return error.with_traceback(_program_frames(error.__traceback__))
    return None


def _is_by_runpy(traceback: TracebackType | None) -> bool:
    """Whether an error was raised before anything of the program ran."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(traceback)]
    return all(file in _RUNPY for file in files)


def _program_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that only start the program."""
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_STARTERS):
            break
        traceback = traceback.tb_next
    return traceback
