"""The file behind a name in torch's stacks, and whether it is the user's own.

torch cuts off the first entry of ``sys.path`` that a file name starts with, so that
``/home/ann/work/train.py`` becomes ``train.py`` and the library's ``linear.py`` becomes
``torch/nn/modules/linear.py``. The user's code is everything outside installed packages and the
standard library.

Source: ``torch.profiler.python_tracer._prefix_regex``.
"""

import os
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

from profkit.folders import working_folder
from profkit.patterns import regex

PROFKIT_FOLDER: Final = str(Path(__file__).resolve().parents[2]) + os.sep
"""The folder of profkit itself, with a separator at the end."""
INTERACTIVE: Final = ("<ipython-input", "<stdin>")
"""Names without a file whose code the user typed."""
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_GENERATED: Final = regex(
    r"[/\\]torchinductor_|[/\\]torch_compile_debug[/\\]|\.fxgraph|\.py:codegen\("
)
"""Code that ``torch.compile`` generates, some of it into files."""
_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable that sets another folder for such files."""


class SourceFiles:
    """Resolves the file names in torch's stacks.

    Attributes:
        paths: From the shortened name of each user file to its absolute path.
        libraries: First parts of the shortened names of all other files.
    """

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.libraries: set[str] = set()
        self._user_files: dict[str, str | None] = {}
        self._prefixes = _prefixes()
        self._roots = library_roots()
        working = working_folder()
        self._modules = {
            os.path.join(working, file)  # noqa: PTH118  (a thousand files, and a Path takes 20 µs)
            for module in list(sys.modules.values())
            if isinstance(file := getattr(module, "__file__", None), str)
        }

    def user_file(self, name: str) -> str | None:
        """Return the absolute path of a user file, or None for any other.

        Args:
            name: The name in torch's stacks.
        """
        if name not in self._user_files:
            self._user_files[name] = self._look_up(name)
        return self._user_files[name]

    def _look_up(self, name: str) -> str | None:
        """Return the path of a user file, and note it, or the library of another file."""
        if not name or name.startswith("<"):
            return name if name.startswith(INTERACTIVE) else None

        path = self._resolve(name)
        if in_library(path, self._roots):
            self.libraries.add(name if Path(name).is_absolute() else Path(name).parts[0])
            return None

        if path != name:
            self.paths[name] = path
        return path

    def _resolve(self, name: str) -> str:
        """Return the absolute path of an imported module, or else of an existing file."""
        if Path(name).is_absolute():
            return name

        # The name may fit several folders: an imported module is the file that ran.
        candidates = [prefix + name for prefix in self._prefixes]
        for candidate in candidates:
            if candidate in self._modules:
                return candidate
        return next((path for path in candidates if Path(path).is_file()), name)


def in_library(path: str, roots: tuple[str, ...]) -> bool:
    """Tell whether a file is in an installed package or the standard library, or is generated.

    Args:
        path: Its absolute path.
        roots: The result of :func:`library_roots`.
    """
    installed = path.startswith(roots) or any(part in path for part in _INSTALLED)
    return installed or _GENERATED.search(path) is not None


def package(path: str, roots: tuple[str, ...]) -> str:
    """Return the package or module of a library's file, such as ``json``; empty for generated code.

    Args:
        path: Its absolute path.
        roots: The result of :func:`library_roots`.
    """
    begins = [path.rfind(part) + len(part) for part in _INSTALLED if part in path]
    # torch's folder is a root of its own, so that a build in another folder is a library too.
    begins = begins or [len(root) for root in roots if path.startswith(root)]
    return Path(path[max(begins) :]).parts[0].removesuffix(".py") if begins else ""


def _prefixes() -> list[str]:
    """Return the prefixes that torch cuts off, in the order in which it tries them."""
    import torch

    folders = [
        *site.getsitepackages(),
        *sys.path,
        site.getuserbase(),
        site.getusersitepackages(),
        str(Path(torch.__file__).parents[1]),
    ]
    absolute = {str(working_folder() / folder) for folder in folders}
    return [folder + os.sep for folder in sorted(absolute, reverse=True)]


def library_roots() -> tuple[str, ...]:
    """Return the folders of the standard library, torch, generated code and profkit itself."""
    return _library_roots(working_folder(), os.environ.get(_CACHE))


@cache
def _library_roots(folder: Path, generated: str | None) -> tuple[str, ...]:
    """Return the folders of libraries for a working directory.

    Args:
        folder: The working directory, to which relative folders refer.
        generated: The folder of generated code, if the environment names one.
    """
    import torch

    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [str(Path(torch.__file__).parent), PROFKIT_FOLDER]
    folders += filter(None, [generated])
    return tuple({str(folder / root) + os.sep for root in folders})
