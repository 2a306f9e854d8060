"""Notices the import of torch: a program without it pays for nothing."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class TorchImport:
    """Calls a function right after the program imports torch, by an entry in ``sys.meta_path``.

    Args:
        on_import: Called once.
    """

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import

    def watch(self) -> None:
        """Add the entry; if torch is imported already, the function is called at once."""
        if "torch" in sys.modules:
            self._on_import()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Remove the entry."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as Python would, and call the function at the end of its import."""
        if fullname != "torch":
            return None
        self.stop()
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        # After the module was executed, as torch is incomplete until then.
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._on_import()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
