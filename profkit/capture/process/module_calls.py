"""Listens to calls of modules: first of all of them, then of one, at little cost.

While there is a global hook, torch calls every module of the process in a longer way, which takes
3 µs more. So there is one only until it is known whose calls count. From then on the class of that
module has a ``__call__``, which takes 0.3 µs and is called for its instances alone.

Dynamo would trace that ``__call__`` as a part of the module. So the global hook, which torch has
for this purpose, is back before the program imports Dynamo, and it stays if it has.

Source: ``torch.nn.Module._call_impl``; measured with torch 2.13.
"""

import contextlib
import importlib.machinery
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any, Final, cast

from profkit.capture.process.compiling import dynamo_flag

_DYNAMO: Final = "torch._dynamo"
_HOOKS_WARNING: Final = r"Using `torch\.compile\(module\)` when there are global hooks"


class _ProcessState:
    """What listens in this process.

    Attributes:
        on_call: Called with the module by :class:`CallOfClass`; None while nothing listens to one
            class.
    """

    on_call: Callable[[object], None] | None = None


_state: Final = _ProcessState()


class CallOfClass:
    """``__call__`` of the class of the one module, which calls that of the next class.

    As a descriptor it is no frame between the program and its module. It is no property, because
    ``torch.jit.script`` compiles the properties of a module's class. It can pickle itself:
    ``cloudpickle`` copies what classes of ``__main__`` have, to where there may be no profkit.

    Args:
        kind: The class.

    Source: ``get_property_stubs`` in ``torch/jit/_recursive.py``.
    """

    def __init__(self, kind: Any) -> None:  # noqa: ANN401  (a class)
        self._kind = kind

    def __get__(self, module: Any, _owner: object = None) -> Any:  # noqa: ANN401
        if module is None:
            return self
        if _state.on_call is not None:
            _state.on_call(module)
        parent: Any = super(self._kind, module)
        return parent.__call__

    def __call__(self, module: object, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Do what the function does that the class seems to have: ``Net.__call__(module, x)``."""
        return self.__get__(module)(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        """Pickle what the class inherits in place of this."""
        import torch

        return getattr, (torch.nn.Module, "__call__")


class ModuleCalls:
    """Listens to calls of modules, in all threads.

    Args:
        on_call: Called with a module before its own call, except while Dynamo traces.
    """

    def __init__(self, on_call: Callable[[object], None]) -> None:
        self._on_call = on_call
        self._unhook: Callable[[], None] | None = None
        self._class: Any = None
        self._call: CallOfClass | None = None
        self._narrowing = threading.Lock()

    def listen(self) -> None:
        """Listen to all modules."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        is_dynamo_tracing, on_call = dynamo_flag(), self._on_call

        def unless_dynamo(module: object, _inputs: object = None) -> None:
            if not is_dynamo_tracing():
                on_call(module)

        self._unhook = _without_warning(register_module_forward_pre_hook(unless_dynamo).remove)

    @property
    def is_narrow(self) -> bool:
        """Return whether it listens to one class."""
        return self._class is not None

    def narrow(self, module: object) -> None:
        """Listen to the calls of this module, and others of its class, if that is possible.

        Any thread may call it; while one does, it does nothing in others.
        """
        if self._narrowing.acquire(blocking=False):
            try:
                self._listen_to_class_of(module)
            finally:
                self._narrowing.release()

    def _listen_to_class_of(self, module: object) -> None:
        import torch

        kind: Any = type(module)
        is_plain = kind is not torch.nn.Module and kind.__call__ is torch.nn.Module.__call__
        if self._unhook is None or _DYNAMO in sys.modules or not is_plain:
            return

        try:
            kind.__call__ = call = CallOfClass(kind)
        except Exception:  # noqa: BLE001  (a metaclass of the program may refuse it with any)
            return

        # The hook goes only now, so that one of the two listens at any time.
        _state.on_call, self._class, self._call = self._on_call, kind, call
        self._unhook()
        self._unhook = None
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Stop listening."""
        if self._unhook is not None:
            self._unhook()
            self._unhook = None

        kind, self._class = self._class, None
        if kind is not None:
            _state.on_call = None
            with contextlib.suppress(Exception):  # of a metaclass of the program
                if vars(kind).get("__call__") is self._call:
                    del kind.__call__
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  (importlib's signature)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find nothing, but listen to all modules before Dynamo is imported."""
        if fullname == _DYNAMO:
            self.stop()
            self.listen()
        return None


def is_within_module_call() -> bool:
    """Return whether the call of a module, of which a hook runs this, is within another's."""
    import torch

    call = torch.nn.Module._call_impl.__code__  # noqa: SLF001  (it runs the hooks)
    n_calls = 0

    # The first one is the call of the module itself.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (CPython's only way)
    while frame is not None and n_calls <= 1:
        n_calls += frame.f_code is call
        frame = frame.f_back

    return n_calls > 1


def _without_warning(remove: Callable[[], None]) -> Callable[[], None]:
    """Suppress torch's warning about a global hook, which is ours, until the hook is removed.

    Args:
        remove: Removes the hook.
    """
    warnings.filterwarnings("ignore", message=_HOOKS_WARNING)
    entry = warnings.filters[0]

    def remove_both() -> None:
        remove()
        with contextlib.suppress(ValueError):  # the program may have reset its filters
            cast("list[object]", warnings.filters).remove(entry)

    return remove_both
