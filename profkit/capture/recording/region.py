"""A named region in a recording, which the program's modes do not see."""

import contextlib
import functools
import inspect


class Region(contextlib.AbstractContextManager[None]):
    """Names a part of the recording, as ``record_function`` does.

    It begins and ends with operators, which ``TorchFunctionMode`` and ``TorchDispatchMode`` of the
    program do not see. The methods of ``record_function`` are called without the wrappers by which
    profkit follows the program's regions.
    """

    def __init__(self, name: str) -> None:
        import torch

        self._region = torch.profiler.record_function(name)
        # torch has no public way.
        self._no_function_mode = torch._C.DisableTorchFunction  # noqa: SLF001
        self._no_dispatch_mode = torch._C._DisableTorchDispatch  # noqa: SLF001

    def __enter__(self) -> None:
        with self._no_function_mode(), self._no_dispatch_mode():
            inspect.unwrap(type(self._region).__enter__)(self._region)

    def __exit__(self, *_exception: object) -> None:
        with self._no_function_mode(), self._no_dispatch_mode():
            inspect.unwrap(type(self._region).__exit__)(self._region, None, None, None)


@functools.cache
def warm_up() -> None:
    """Use a region once, before a recording begins.

    torch looks up the classes of its first region for 8 to 16 ms, which would be a part of the
    first recorded step.
    """
    with Region("profkit"):
        pass
