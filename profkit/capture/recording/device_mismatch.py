"""Which tensors were on which devices when an operator failed since they differ."""

import contextlib
import linecache
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from profkit.capture.process import environment
from profkit.capture.process.frames import locals_of
from profkit.capture.source.user_code import UserCode
from profkit.model.capture_info import DeviceMismatch, TensorPlace
from profkit.model.location import MODULE_LEVEL
from profkit.patterns import regex

_MISMATCH: Final = regex(
    r"expected all tensors to be on the same device|is not on the expected device"
    r"|Input type \(.+\) and weight type \(.+\) should be the same|Expected object of device type",
    re.IGNORECASE,
)
"""Source: ``c10/core/impl``'s and ``aten/src/ATen/native``'s checks of devices, and
``check_same_device`` in ``torch/_prims_common``."""
_METHOD: Final = regex(r"in method wrapper_[A-Z]+_(?:out|_)*(\w+)\)")
_MAX_MESSAGE: Final = 300
_MAX_TENSORS: Final = 12


def note(error: RuntimeError) -> None:
    """Keep what an error tells, if it is of this kind; the error itself is not kept.

    It becomes a part of the trace that is written next.
    """
    if "torch" in sys.modules:
        with contextlib.suppress(Exception):  # the program's own error is the one to be seen
            environment.state.mismatch = _describe_mismatch(error)


def _describe_mismatch(error: BaseException) -> DeviceMismatch | None:
    """Describe an error that says that devices differ; None for any other error."""
    message = str(error).partition("\n")[0][:_MAX_MESSAGE]
    if _MISMATCH.search(message) is None:
        return None

    frames = list(_iterate_frames(error))
    users = UserCode()
    user_frames = [place for place in frames if users.is_user_file(place[0].f_code.co_filename)]
    method = _METHOD.search(message)
    operator = f"aten::{method[1]}" if method is not None else ""
    if not user_frames:
        return DeviceMismatch(message, operator, ("", 0, ""), [])

    # A module that torch itself defines has its tensors in no variable of the user's line.
    frame, line = user_frames[-1]
    tensors = list(_find_named_on_line(frame, line))
    tensors += [tensor for called, _ in frames for tensor in _find_in_module(called)]
    place = (frame.f_code.co_filename, line, _name(frame))
    return DeviceMismatch(message, operator, place, tensors[:_MAX_TENSORS])


def _name(frame: FrameType) -> str:
    return frame.f_code.co_name


def _iterate_frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a traceback and their lines, outermost first."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _find_named_on_line(frame: FrameType, line: int) -> Iterator[TensorPlace]:
    """Yield the local variables of a frame that are tensors, and that the line names."""
    words = set(re.findall(r"\w+", linecache.getline(frame.f_code.co_filename, line)))
    variables = frame.f_globals if _name(frame) == MODULE_LEVEL else locals_of(frame)
    for name in sorted(words & variables.keys()):
        if _is_tensor(value := variables[name]):
            yield _place(name, value)


def _find_in_module(frame: FrameType) -> Iterator[TensorPlace]:
    """Yield the parameters and arguments of a module of torch whose ``forward`` is running."""
    import torch

    if _name(frame) != "forward":
        return

    variables = locals_of(frame)
    module = variables.get("self")
    if not issubclass(type(module), torch.nn.Module):
        return
    kind = type(module).__name__
    if not type(module).__module__.startswith("torch.nn"):
        return

    # From its dictionaries, so that no property or method of the class runs.
    for name, value in (*vars(module)["_parameters"].items(), *vars(module)["_buffers"].items()):
        if _is_tensor(value):
            yield _place(f"{name} of {kind}", value)
    for name, value in variables.items():
        if _is_tensor(value):
            yield _place(f"{name} of {kind}", value)


def _is_tensor(value: object) -> bool:
    """Return whether a value is a tensor, and of no class of the program, whose code would run."""
    import torch

    return type(value) in {torch.Tensor, torch.nn.Parameter}


def _place(name: str, tensor: Any) -> TensorPlace:  # noqa: ANN401  (torch is not imported here)
    return TensorPlace(name, str(tensor.device), [int(size) for size in tensor.shape])
