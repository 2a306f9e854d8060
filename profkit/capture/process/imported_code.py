"""Retains the code of modules that are imported while Python calls are recorded.

torch's tracer stores pointers to the names of functions, and reads them when its events are looked
at. The code of a module is freed once it has run. So the names of what ran in an import were
whatever had come to that memory: not JSON, not UTF-8, or no memory of the process any more.

Source: ``CodeLocation`` in ``torch/csrc/autograd/profiler_python.cpp``; pytorch#121219. With torch
2.13, 899 names in 1.9 million calls of imports were wrong, and none if their code is retained.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final

from profkit.capture.process.wrappers import replace_attribute

_LOADED_BY: Final = ((None, "_compile_bytecode"), ("SourceLoader", "source_to_code"))
"""Classes (or none) and functions of importlib that return the code of a module: that of a cached
file, and that of a source file."""

_lock: Final = threading.Lock()
_open: Final[list[list[CodeType]]] = []
"""The code that was loaded since, for each block that is open."""
_undo: Final[list[Callable[[], None]]] = []


@contextlib.contextmanager
def imported_code() -> Iterator[list[CodeType]]:
    """Collect the code of the modules that are imported in the block, in all threads.

    Yields:
        The code so far. Who has it retains it.
    """
    collected: list[CodeType] = []
    with _lock:
        _open.append(collected)
        if not _undo:
            _undo.extend(_collect_code_of(*function) for function in _LOADED_BY)

    try:
        yield collected
    finally:
        with _lock:
            # By identity: two lists with the same code are equal.
            _open[:] = [codes for codes in _open if codes is not collected]
            while _undo and not _open:
                _undo.pop()()


def _collect_code_of(class_name: str | None, name: str) -> Callable[[], None]:
    """Collect what a function of importlib returns; returns what restores the function."""
    owner: Any = importlib.import_module("importlib._bootstrap_external")
    owner = owner if class_name is None else getattr(owner, class_name)
    original = getattr(owner, name, None)
    if original is None:  # another Python
        return lambda: None

    def load(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passes its arguments on)
        code = original(*args, **kwargs)
        for collected in _open:
            collected.append(code)
        return code

    # Python leaves frames of importlib out of the traceback of an error in the program's module.
    load.__code__ = load.__code__.replace(co_filename=original.__code__.co_filename)
    return replace_attribute(owner, name, load)
