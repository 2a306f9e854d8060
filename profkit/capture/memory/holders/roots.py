"""Where a search for holders ends: what is alive because Python itself keeps it.

The program's modules and classes, the locals of functions that run, and context variables. The
program's own come before those of libraries. Profkit's own are no holders at all.
"""

import contextvars
import sys
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Final

from profkit.capture.memory.holders import frames
from profkit.capture.memory.holders.attributes import module_of, namespace_of, type_name
from profkit.capture.source.files import PROFKIT_FOLDER, in_library, library_roots
from profkit.capture.source.user_code import is_profkit_frame
from profkit.model.live_memory import HolderKind

_OUR_PACKAGE: Final = "profkit"


@dataclass(frozen=True)
class Root:
    """Where a chain begins.

    Attributes:
        kind: What kind of holder it is.
        name: What the chain's text begins with: ``__main__``, ``losses``, ``Net``.
        where: What the text of its first stretch ends with, such as `` in main at train.py:3``.
        is_library: Whether it belongs to a library, and not to the program.
        is_lent: Whether it is an argument, such as ``self``: what a caller has by another name.
    """

    kind: HolderKind
    name: str
    where: str = ""
    is_library: bool = False
    is_lent: bool = False


class Roots:
    """The roots of this moment, by the id of what they hold. They hold nothing themselves."""

    def __init__(self) -> None:
        self._libraries = library_roots()
        self._modules: dict[int, Root] = {}
        self._held: dict[int, Root] = {}
        for name, module in list(sys.modules.items()):
            if type(name) is str and issubclass(type(module), ModuleType):
                self._add_module(name, module)
        self._add_frames()
        for variable, value in contextvars.copy_context().items():
            root = Root("thread", f"ContextVar {variable.name!r}")
            self._held.setdefault(id(value), root)

    def of_namespace(self, namespace: dict[object, object]) -> Root | None:
        """The module whose globals a dict is, or None if it is no module's.

        Args:
            namespace: A dict.
        """
        known = self._modules.get(id(namespace))
        if known is not None or "__builtins__" not in namespace:
            return known
        name = namespace.get("__name__")
        return Root("module-global", name if type(name) is str else "globals")

    def of_class(self, cls: type) -> Root:
        """A class as a root: its attributes are as long-lived as a module's globals.

        Args:
            cls: A class.
        """
        return Root("class", type_name(cls), is_library=self._is_library_class(cls))

    def of_value(self, identity: int) -> Root | None:
        """The running function's local or the context variable that a thing is, or None.

        Args:
            identity: The thing's id.
        """
        return self._held.get(identity)

    def is_ours(self, thing: object) -> bool:
        """Whether a thing is profkit's own: a module's globals, an instance, running code.

        Args:
            thing: Any object.
        """
        if type(thing) is dict:
            return _is_our_namespace(thing)
        if type(thing) is FrameType:
            return is_profkit_frame(thing)
        module = module_of(type(thing))
        return module == _OUR_PACKAGE or module.startswith(f"{_OUR_PACKAGE}.")

    def _add_module(self, name: str, module: ModuleType) -> None:
        namespace = namespace_of(module)
        if namespace is None or id(namespace) in self._modules:
            return
        is_library = name != "__main__" and self._is_library(name, namespace.get("__file__"))
        self._modules[id(namespace)] = Root("module-global", name, is_library=is_library)

    def _add_frames(self) -> None:
        for frame in frames.running():
            code = frame.f_code
            is_library = in_library(code.co_filename, self._libraries)
            where = f" in {frames.place_of(code)}"
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            for name, value in frames.locals_of(frame).items():
                if name.startswith("."):
                    continue  # What a comprehension goes over has no name in the program.
                root = Root("frame", name, where, is_library, is_lent=name in arguments)
                known = self._held.get(id(value))
                # Of several functions the outermost keeps it longest, and comes last.
                if known is None or known.is_library or not is_library:
                    self._held[id(value)] = root

    def _is_library(self, name: str, file: object) -> bool:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in sys.builtin_module_names:
            return True
        return type(file) is str and in_library(file, self._libraries)

    def _is_library_class(self, cls: type) -> bool:
        name = module_of(cls)
        module = sys.modules.get(name)
        if name == "__main__" or not issubclass(type(module), ModuleType):
            return False
        namespace = namespace_of(module)
        root = self._modules.get(id(namespace))
        return root is not None and root.is_library


def _is_our_namespace(namespace: dict[object, object]) -> bool:
    """Whether a dict is the globals of a module of profkit's, unless it runs as the program."""
    if "__builtins__" not in namespace:
        return False
    file = namespace.get("__file__")
    return (
        type(file) is str
        and file.startswith(PROFKIT_FOLDER)
        and (namespace.get("__name__") != "__main__" or file.endswith("__main__.py"))
    )
