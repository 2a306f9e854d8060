"""Roots of reference chains: objects that Python itself keeps alive.

Modules, classes, locals of running functions and context variables. Roots in the program are
preferred to those in libraries. profkit's own objects are never holders.
"""

import contextvars
import sys
from collections.abc import Collection, Iterator
from types import FrameType, ModuleType
from typing import Any, Final

from profkit.capture.memory.holders.attributes import (
    class_namespace,
    module_of,
    namespace_of,
    type_name,
)
from profkit.capture.process import frames
from profkit.capture.source.files import PROFKIT_FOLDER, in_library, library_roots
from profkit.capture.source.user_code import is_profkit_frame
from profkit.dataclass import dataclass
from profkit.model.live_memory import HolderKind

_OWN_PACKAGE: Final = "profkit"
_NAMESPACE: Final = class_namespace(ModuleType)["__dict__"]


@dataclass(frozen=True)
class Root:
    """The start of a reference chain.

    Attributes:
        name: Start of the chain's text: ``__main__``, ``losses``, ``Net``.
        where: Suffix of its first segment, such as `` in main at train.py:3``.
        is_library: Whether it belongs to a library rather than to the program.
        is_argument: Whether it is an argument, such as ``self``, which a caller has by another
            name.
    """

    kind: HolderKind
    name: str
    where: str = ""
    is_library: bool = False
    is_argument: bool = False


class Roots:
    """The current roots, by the id of the object that they hold. Keeps no object alive."""

    def __init__(self) -> None:
        self._libraries = library_roots()
        self._modules: dict[int, Root] = {}
        self._values: dict[int, Root] = {}
        self._module_names: dict[int, str] = {}
        for name, module in list(sys.modules.items()):
            if type(name) is str and issubclass(type(module), ModuleType):
                # A subclass of a module's type may define a ``__dict__`` of its own.
                is_plain = type(module) is ModuleType
                namespace = _NAMESPACE.__get__(module) if is_plain else namespace_of(module)
                self._module_names.setdefault(id(namespace), name)
        self._add_frames()
        for variable, value in contextvars.copy_context().items():
            self._values.setdefault(id(value), Root("thread", f"ContextVar {variable.name!r}"))

    def namespaces(self) -> Collection[int]:
        """Return the ids of the globals of all modules."""
        return self._module_names.keys()

    def find_program_globals(self) -> Iterator[tuple[dict[Any, object], Root]]:
        """Find the globals of the program's own modules. A package is its own or a library's."""
        is_library: dict[str, bool] = {}

        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0] if type(name) is str else ""
            # A third of all modules: those of Python are known by name.
            if is_library.get(top) or top in sys.stdlib_module_names:
                continue

            namespace: dict[Any, object] | None = namespace_of(module)
            root = None if namespace is None else self.of_namespace(namespace)
            if namespace is None or root is None or _is_own_namespace(namespace):
                continue

            is_library[top] = root.is_library
            if not root.is_library:
                yield namespace, root

    def is_of_program(self, namespace: dict[Any, object]) -> bool:
        """Tell whether a dict is the globals of a module of the program."""
        root = self.of_namespace(namespace)
        return root is not None and not root.is_library and not _is_own_namespace(namespace)

    def of_namespace(self, namespace: dict[Any, object]) -> Root | None:
        """Return the module whose globals a dict is, or None."""
        root = self._modules.get(id(namespace))
        if root is not None:
            return root

        module = self._module_names.get(id(namespace))
        if module is not None:
            is_library = module != "__main__" and self._is_library(
                module, namespace.get("__file__")
            )
            root = self._modules[id(namespace)] = Root(
                "module-global", module, is_library=is_library
            )
            return root

        # Code that the program runs with globals of its own, as ``exec`` does.
        if "__builtins__" not in namespace:
            return None
        name = namespace.get("__name__")
        return Root("module-global", name if type(name) is str else "globals")

    def of_class(self, cls: type) -> Root:
        """Return a class as a root: its attributes live as long as a module's globals."""
        return Root("class", type_name(cls), is_library=self._is_library_class(cls))

    def of_value(self, identity: int) -> Root | None:
        """Return the local or context variable whose value has this id, or None."""
        return self._values.get(identity)

    def is_own(self, thing: object) -> bool:
        """Tell whether an object is profkit's own: a module's globals, an instance, a frame."""
        if type(thing) is dict:
            return _is_own_namespace(thing)
        if type(thing) is FrameType:
            return is_profkit_frame(thing)
        module = module_of(type(thing))
        return module == _OWN_PACKAGE or module.startswith(f"{_OWN_PACKAGE}.")

    def _add_frames(self) -> None:
        """Add the local variables of running functions, the innermost function first."""
        for frame in frames.running():
            code = frame.f_code
            is_library = in_library(code.co_filename, self._libraries)
            where = f" in {frames.describe_code(code)}"
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

            for name, value in frames.locals_of(frame).items():
                if name.startswith("."):
                    continue  # the iterable of a comprehension has no name in the program

                root = Root("frame", name, where, is_library, is_argument=name in arguments)
                earlier = self._values.get(id(value))
                # The outermost of several functions lives longest, and comes last.
                if earlier is None or earlier.is_library or not is_library:
                    self._values[id(value)] = root

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
        namespace: dict[Any, object] | None = namespace_of(module)
        root = None if namespace is None else self.of_namespace(namespace)
        return root is not None and root.is_library


def is_class_of_program(cls: type) -> bool:
    """Tell whether a class is defined in the program, and neither in a library nor in C."""
    name = module_of(cls)
    module = sys.modules.get(name)
    if name == "__main__":
        return True
    if not issubclass(type(module), ModuleType) or name.partition(".")[0] == _OWN_PACKAGE:
        return False
    file = (namespace_of(module) or {}).get("__file__")
    is_file = type(file) is str and name.partition(".")[0] not in sys.stdlib_module_names
    return is_file and not in_library(str(file), library_roots())


def _is_own_namespace(namespace: dict[Any, object]) -> bool:
    """Tell whether a dict is the globals of a profkit module that does not run as the program."""
    if "__builtins__" not in namespace:
        return False
    file = namespace.get("__file__")
    return (
        type(file) is str
        and file.startswith(PROFKIT_FOLDER)
        and (namespace.get("__name__") != "__main__" or file.endswith("__main__.py"))
    )
