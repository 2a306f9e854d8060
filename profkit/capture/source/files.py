"""Which file a name in torch's stacks stands for, and whether the user wrote it.

torch shortens a file's name by the first entry of ``sys.path`` that it begins with, so that
``/home/ann/work/train.py`` becomes ``train.py`` and the library's ``linear.py`` becomes
``torch/nn/modules/linear.py``. The user's code is what lies neither in an installed package nor in
the standard library.

Source: ``torch.profiler.python_tracer._prefix_regex``.
"""

import os
import re
import site
import sys
import sysconfig
from pathlib import Path
from typing import Final

INTERACTIVE: Final = ("<ipython-input", "<stdin>")
"""Files that are none, and yet hold what the user typed."""
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_GENERATED: Final = re.compile(
    r"[/\\]torchinductor_|[/\\]torch_compile_debug[/\\]|\.fxgraph|\.py:codegen\("
)
"""Code that ``torch.compile`` writes, some of it into files."""
_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Names another folder for them."""


class SourceFiles:
    """Files by the names that torch gives them.

    Attributes:
        paths: From the shortened name of each file of the user's to its absolute path.
        libraries: First parts of the shortened names of all others.
    """

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.libraries: set[str] = set()
        self._found: dict[str, str | None] = {}
        self._prefixes = _prefixes()
        self._roots = library_roots()
        self._modules = {
            str(Path(file).absolute())
            for module in list(sys.modules.values())
            if isinstance(file := getattr(module, "__file__", None), str)
        }

    def user_file(self, name: str) -> str | None:
        """The absolute path of a file of the user's, or None for any other.

        Args:
            name: The name in torch's stacks.
        """
        if name not in self._found:
            self._found[name] = self._look_up(name)
        return self._found[name]

    def _look_up(self, name: str) -> str | None:
        if not name or name.startswith("<"):
            return name if name.startswith(INTERACTIVE) else None
        path = self._resolve(name)
        if self.is_library(path):
            self.libraries.add(name if Path(name).is_absolute() else Path(name).parts[0])
            return None
        if path != name:
            self.paths[name] = path
        return path

    def _resolve(self, name: str) -> str:
        """The file itself: an imported one first, else one that is there."""
        if Path(name).is_absolute():
            return name
        candidates = [prefix + name for prefix in self._prefixes]
        for candidate in candidates:
            if candidate in self._modules:
                return candidate
        for candidate in candidates:
            if Path(candidate).is_file():
                return candidate
        return name

    def is_library(self, path: str) -> bool:
        """Whether a file belongs to an installed package or to the standard library.

        Args:
            path: Its absolute path.
        """
        return in_library(path, self._roots)


def in_library(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a file belongs to an installed package or to the standard library, or is generated.

    Args:
        path: Its absolute path.
        roots: What :func:`library_roots` gave.
    """
    installed = path.startswith(roots) or any(part in path for part in _INSTALLED)
    return installed or _GENERATED.search(path) is not None


def _prefixes() -> list[str]:
    """What torch cuts off, in the order in which it tries."""
    import torch

    folders = [
        *site.getsitepackages(),
        *sys.path,
        site.getuserbase(),
        site.getusersitepackages(),
        str(Path(torch.__file__).parents[1]),
    ]
    return [
        folder + os.sep
        for folder in sorted({str(Path(f).absolute()) for f in folders}, reverse=True)
    ]


def library_roots() -> tuple[str, ...]:
    """Folders of the standard library, of torch and what it generates, and of profkit itself."""
    import torch

    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [str(Path(torch.__file__).parent), str(Path(__file__).resolve().parents[2])]
    folders += filter(None, [os.environ.get(_CACHE)])
    return tuple({str(Path(folder).absolute()) + os.sep for folder in folders})
