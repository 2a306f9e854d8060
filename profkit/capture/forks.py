"""What a forked child does with the profiler that it finds in its memory: nothing, and quietly.

The child has a copy of the profiler's state but none of its threads. Its operators and calls would
be recorded for ever, and libkineto's destructors would wait for those threads when the child exits
in the usual way, as they do after any use of torch's profiler.

Source: seen with torch 2.13: ``std::system_error`` or no end at all in a child that calls
``sys.exit`` after its parent has used ``torch.profiler``.
"""

import contextlib
import ctypes
import sys


def disown(*, recording: bool) -> None:
    """Switch the copied profiler off in a child, and let the child exit past its destructors.

    Args:
        recording: Whether the parent was recording when it forked.
    """
    if recording:
        sys.setprofile(None)
        autograd = getattr(sys.modules.get("torch"), "autograd", None)
        if autograd is not None and hasattr(autograd, "_enable_record_function"):
            autograd._enable_record_function(False)  # noqa: FBT003, SLF001  (torch has no other way)
    # glibc calls what is registered last first, with the exit status: here that is _exit itself.
    # Python has flushed its own files by then.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # noqa: SLF001  (its name in C)
