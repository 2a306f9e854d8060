"""A process that has imported torch and forks programs, which then need not import it for seconds.

``tests.processes`` starts it once per test process, and sends it a socket for each program. It
imports libraries and nothing of profkit. A program does not see that: modules of torch are hidden
from ``sys.modules`` until it imports them, when they appear at once, through the import system and
its hooks as ever. What differs from a process of its own: what libraries read from the environment
when they are imported is that of the server, and their import takes no time.

No thread may run when it forks: it imports torch and never calls it.
"""

import atexit
import builtins
import contextlib
import copy
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from io import open_code
from types import ModuleType
from typing import Any, Final

LIBRARIES: Final = ("click", "msgspec", "numpy", "rich.console")
"""What profkit imports, besides torch; their modules are seen by a program at once."""
HIDDEN: Final = ("torch", "torch._dynamo")
"""Each is imported by itself. The second by a program's first optimizer."""

SIGINT_AT_START: Final = signal.getsignal(signal.SIGINT)
"""What programs have: the server itself ignores Ctrl-C."""
PATH_AT_START: Final = tuple(sys.path)
"""Older versions of torch add a folder when they are imported."""


class Hidden:
    """Modules that are imported together, and are not in ``sys.modules`` until then.

    Args:
        name: The module that imports them.
    """

    def __init__(self, name: str) -> None:
        before = set(sys.modules)
        importlib.import_module(name)
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name not in before and name.partition(".")[0] == "torch"
        }

    def __contains__(self, name: str) -> bool:
        """Return whether the import system finds a module here."""
        return name in self._modules and self._modules[name].__spec__ is not None

    def hide(self) -> None:
        """Take them out of ``sys.modules`` and of their packages."""
        for name in self._modules:
            del sys.modules[name]
            package, _, last = name.rpartition(".")
            if package and package not in self._modules and last in vars(sys.modules[package]):
                delattr(sys.modules[package], last)

    def show(self) -> None:
        """Put them back."""
        sys.modules.update(self._modules)
        for name, module in self._modules.items():
            package, _, last = name.rpartition(".")
            if package and package not in self._modules:
                setattr(sys.modules[package], last, module)
        self._modules = {}

    def spec(self, name: str) -> ModuleSpec:
        """Return the spec by which the import system loads a module."""
        module = self._modules[name]
        assert module.__spec__ is not None
        spec = copy.copy(module.__spec__)
        spec.loader = _Shown(self, module, module.__spec__)
        return spec


class _Shown(Loader):
    """Loads a module that is there already.

    Args:
        hidden: Where it is.
        module: The module.
        spec: By which it was imported.
    """

    def __init__(self, hidden: Hidden, module: ModuleType, spec: ModuleSpec) -> None:
        self._hidden = hidden
        self._module = module
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002  (its signature)
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Show it and those imported with it."""
        module.__spec__ = self._spec
        self._hidden.show()


def hide(groups: Sequence[Hidden]) -> None:
    """Hide modules until the import system is asked for one of them."""
    for group in reversed(groups):
        group.hide()
    find_spec = PathFinder.find_spec

    def find_hidden(
        _finder: type[PathFinder],
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        for group in groups:
            if fullname in group:
                return group.spec(fullname)
        return find_spec(fullname, path, target)

    PathFinder.find_spec = classmethod(find_hidden)  # type: ignore[assignment,method-assign]


def serve(requests: socket.socket) -> Mapping[str, Any] | None:
    """Fork a process for each program, which waits for the program and sends how it ended.

    Args:
        requests: Receives four descriptors for each: a socket for the program's arguments, folder
            and environment, its stdin, stdout and stderr.

    Returns:
        In each program, what it is to run; None in the server, once nobody can send more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        _, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        if not descriptors:
            wait_for_children(0)
            return None
        if os.fork() == 0:
            requests.close()
            return start_program(socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)
        wait_for_children(os.WNOHANG)


def wait_for_children(options: int) -> None:
    """Take note of ended children, so that the system forgets them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options) != (0, 0):
            pass


def start_program(client: socket.socket, streams: Sequence[int]) -> Mapping[str, Any]:
    """Fork the program; returns there what it is to run, and does not return here."""
    with client, client.makefile("rb") as received:
        program: Mapping[str, Any] = json.loads(received.readline())
        pid = os.fork()
        if pid:
            with contextlib.suppress(BrokenPipeError):  # it waits no more
                client.sendall(b"%d\n" % pid)
                client.sendall(b"%d\n" % os.waitpid(pid, 0)[1])
            os._exit(0)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return program


def run(program: Mapping[str, Any], seeds: Iterable[Callable[[], object]]) -> None:
    """Run a program as ``python`` with its arguments would.

    Args:
        program: Its arguments, folder and environment.
        seeds: Give generators of random numbers another state than the server's.
    """
    signal.signal(signal.SIGINT, SIGINT_AT_START)
    sys.path[:] = PATH_AT_START
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    # Some versions of Python leave the main thread of a fork the number that it had before.
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    for seed in seeds:
        seed()

    command: Sequence[str] = program["command"]
    sys.orig_argv[1:] = command
    module = ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    if command[0] == "-m":
        sys.path[0] = program["folder"]
        sys.argv[:] = command[1:]
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
    elif command[0] == "-c":
        sys.path[0] = ""
        sys.argv[:] = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), vars(module))  # noqa: S102
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(command[0]))  # noqa: PTH120
        sys.argv[:] = command
        path = os.path.abspath(command[0])  # noqa: PTH100
        module.__file__, module.__loader__ = path, SourceFileLoader("__main__", path)
        with open_code(path) as file:
            code = compile(file.read(), path, "exec")
        exec(code, vars(module))  # noqa: S102


def collect_last() -> None:
    """Collect the program's garbage at its end, and have the interpreter not do so four times.

    Each time goes through all objects of torch, a quarter of a second in all.
    """
    if gc.isenabled():
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    atexit.register(collect_last)  # the first, which is called last
    for library in LIBRARIES:
        importlib.import_module(library)
    hidden = [Hidden(name) for name in HIDDEN]
    numpy, torch = (importlib.import_module(name) for name in ("numpy", "torch"))
    hide(hidden)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        run(request, (numpy.random.seed, torch.default_generator.seed))
