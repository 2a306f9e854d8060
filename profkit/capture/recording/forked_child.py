"""Torch's profiler in a forked child, which has its memory but none of its threads."""

import contextlib
import ctypes
import sys


def disable_in_child(*, recording: bool) -> None:
    """Disable the copied profiler in a forked child, and let the child exit without destructors.

    The child's operators and calls would be recorded forever, and libkineto's destructors would
    wait for the missing threads at a normal exit, as they do after any use of torch's profiler.

    Args:
        recording: Whether the parent was recording when it forked.

    Source: seen with torch 2.13: ``std::system_error`` or a hang in a child that calls
    ``sys.exit`` after its parent has used ``torch.profiler``.
    """
    if recording:
        sys.setprofile(None)
        autograd = getattr(sys.modules.get("torch"), "autograd", None)
        if autograd is not None and hasattr(autograd, "_enable_record_function"):
            autograd._enable_record_function(False)  # noqa: FBT003, SLF001  (torch has no other way)

    # glibc calls the handler registered last first, with the exit status: here that is _exit
    # itself. Python has flushed its own files by then.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # noqa: SLF001  (its name in C)
