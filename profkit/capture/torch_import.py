"""Calls a function as soon as the program has imported torch, and not before."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class TorchImport:
    """Waits on ``sys.meta_path`` for the import of torch.

    Args:
        loaded: Called once, after torch is imported.
    """

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded

    def watch(self) -> None:
        """Wait from now on; if torch is there already, it is called at once."""
        if "torch" in sys.modules:
            self._loaded()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as Python would, with a call at the end of its import."""
        if fullname != "torch":
            return None
        self.stop()
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._loaded()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
