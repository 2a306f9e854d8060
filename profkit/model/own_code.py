"""Recognizes profkit's own calls in a recording, by the name of their event.

The launcher of the program (click, runpy) and the calls within a wrapper are recognized by their
place: see :mod:`profkit.readers.kineto.own_work`.
"""

import re
import sys
from collections.abc import Container
from functools import lru_cache
from typing import Final

from profkit.model.torch_names import MODULE_PREFIX, OWN_WORK_PREFIX
from profkit.patterns import regex

THREAD_PREFIX: Final = "profkit"
"""Start of the names of profkit's threads."""

IMPORT_PREFIX: Final = "<frozen importlib"
"""Start of the calls of Python's import system, which calls hooks of installed packages."""
_FILE: Final = regex(r"^(?P<file>.+)\(\d{1,9}\): ", re.DOTALL)
_OWN: Final = regex(
    r"^profkit[/\\]|(site|dist)-packages[/\\]profkit[/\\]"
    r"|[/\\]profkit[/\\](capture|cli|integrations)[/\\]|(^|[/\\])(bin|Scripts)[/\\]profkit$"
)
"""Files of profkit, and the script that starts it."""
_MONITORING: Final = regex(r"(^|[/\\])profkit[/\\]capture[/\\]memory[/\\](monitor|holders)[/\\]")
"""Files of profkit whose calls run nothing of the program, even where they run an operator."""
_NOT_A_PROGRAMS: Final = frozenset(
    {
        "torch", "click", "numpy", "msgspec", "isal", "rich", "jinja2", "psutil", "_pytest",
        "pytest", "pluggy", "typing_extensions", "packaging", "pynvml", "fsspec", "zstandard",
    }
)  # fmt: skip
"""Libraries that profkit calls, or that call it: their calls do not show that the program runs."""
_STARTS_PROFILER: Final = regex(
    r"(^|[/\\])torch[/\\](profiler[/\\]profiler|autograd[/\\]profiler)\.py\(\d+\): "
    r"(start|start_trace|_start_trace|prepare_trace|_transit_action|__enter__)$"
)
_OF_A_PROGRAM: Final = regex(r"(^|[/\\])torch[/\\]utils[/\\]data[/\\]")
_STANDARD_LIBRARY: Final = regex(
    r"^<(frozen |string>|stdin>)|[/\\]lib[/\\]python3?(\.\d+)?[/\\](?!(site|dist)-packages)"
)
_TYPED_PROGRAM: Final = regex(r"^<(string|stdin)>\(\d+\): <module>$")
"""A program without a file. Functions of the standard library are generated in such files too."""


def _file_of(name: str) -> str:
    match = _FILE.match(name)
    return "" if match is None else match["file"]


def is_own_mark(name: str) -> bool:
    """Return whether an annotation with this name is around profkit's own work."""
    return name.startswith(OWN_WORK_PREFIX)


def is_own_call(name: str, users_files: Container[str] = ()) -> bool:
    """Return whether a Python call with this name is a call of profkit.

    Args:
        users_files: Files of the program as they are named in the recording.
    """
    file = _file_of(name)
    return _OWN.search(file) is not None and file not in users_files


def is_monitoring_call(name: str) -> bool:
    """Return whether a call of profkit with this name never calls the program."""
    return _MONITORING.search(_file_of(name)) is not None


def waits_for_own_thread(name: str) -> bool:
    """Return whether profkit runs work in a new thread in this call, and waits for it."""
    return is_own_call(name) and name.endswith(": in_new_thread")


def starts_profiler(name: str) -> bool:
    """Return whether a Python call with this name is part of the start of torch's profiler."""
    return _STARTS_PROFILER.search(name) is not None


def is_users_call(name: str, users_files: Container[str]) -> bool:
    """Return whether a Python call with this name is in a file that is known to be the user's."""
    return _file_of(name) in users_files


def is_program_call(name: str, users_files: Container[str] = ()) -> bool:
    """Return whether a Python call with this name shows that the program runs.

    These are functions of the user, calls of modules, and functions of libraries that profkit does
    not call: neither builtins nor functions of torch or the standard library.

    Args:
        users_files: As for :func:`is_own_call`.
    """
    file = _file_of(name)
    if not file:
        return name.startswith(MODULE_PREFIX)
    is_typed = _TYPED_PROGRAM.search(name) is not None
    return is_typed or file in users_files or _is_of_program(file)


@lru_cache(maxsize=4096)
def _is_of_program(file: str) -> bool:
    """Return whether a file is not of profkit, the standard library, or a library that it uses."""
    if _OF_A_PROGRAM.search(file):
        return True
    if _OWN.search(file) or _STANDARD_LIBRARY.search(file):
        return False

    installed = re.split(r"(?:site|dist)-packages[/\\]", file)[-1]
    first = re.split(r"[/\\]", installed, maxsplit=1)[0].removesuffix(".py")
    return first not in _NOT_A_PROGRAMS and first not in sys.stdlib_module_names
