"""The process that carries out calls, one after the other: items come in by stdin, results go out.

It ends when the program that started it ends, however that happens, and takes its own children
with it.
"""

import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from profkit.errors import InternalError, ProfkitError


def main() -> None:
    """Run the worker; its argument is the function, as ``module:name``."""
    results = _claim_stdout()
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, items), daemon=True).start()

    function = named(sys.argv[1])
    while True:
        result = outcome_of(function, items.get())
        pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
        results.flush()
        # Two large results at a time would take twice the memory.
        del result


def named(name: str) -> Callable[[Any], Any]:
    """Import a function by its module and name, as ``module:name``."""
    module, _, attribute = name.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), attribute)
    return function


def outcome_of(function: Callable[[Any], Any], item: object) -> Any:  # noqa: ANN401  (what it returns)
    """Return a function's result for an item, or the error that it raises, as one of ours."""
    try:
        return function(item)
    except ProfkitError as error:
        return error
    except MemoryError:
        return InternalError("Memory ran out.", "Use fewer processes, with --workers.")
    except Exception as error:  # noqa: BLE001  (one bug ends one call)
        lines = traceback.format_exception_only(type(error), error)
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"A bug in profkit ({lines[-1].strip()}, {place.filename}:{place.lineno})."
        return InternalError(message, "Please report it.")


def _claim_stdout() -> BinaryIO:
    """Return the pipe to the other process; output that rules print goes nowhere."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  (no path of a file)
        os.dup2(nowhere.fileno(), sys.stdout.fileno())

    return pipe


def _receive(stream: BinaryIO, items: "queue.SimpleQueue[Any]") -> None:
    """Pass on items until the input ends, which ends the process at once."""
    try:
        while True:
            items.put(pickle.load(stream))  # noqa: S301  (from the process that started this one)
    finally:
        end_group()


def end_group() -> None:
    """End this process and its children, if it leads a group of its own."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
