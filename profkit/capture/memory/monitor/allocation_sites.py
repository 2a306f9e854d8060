# ruff: noqa: SLF001  (the stack of modes, and weak references to storages, have no public names)
"""Which line made the tensors that stay.

For a few steps, once growth is seen, every operator's output is noted with the Python stack that
it came from. That takes some ten microseconds an operator, so what is learned in those steps has
to do: what is still alive some steps later is kept, with its line, and the rest is forgotten.

Source: ``torch.utils._python_dispatch.TorchDispatchMode``: a mode is on a stack of its thread, so
this one is put there and taken off only when no mode of the program's is above it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from profkit.capture.memory.holders.autograd_graphs import past_user_code
from profkit.capture.source.user_code import Stack, UserCode

_DEPTH: Final = 2
"""How deep an operator's outputs lie within tuples and lists."""


class AllocationSampler:
    """Notes where storages are made, for a few steps.

    Attributes:
        steps: The steps that were sampled from end to end.
        is_on: Whether a step is being sampled.
    """

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.is_on = False
        self._mode: Any = None
        self._made: dict[int, Stack] = {}
        self._user = UserCode()

    def can_begin(self) -> bool:
        """Whether a mode can be put on now without the program noticing."""
        import torch

        return not self.is_on and not torch._C._len_torch_dispatch_stack() and not _compiles()

    def begin(self) -> None:
        """Note what is made from here on."""
        self._mode = _mode_that_tells(self._note)
        self._mode.__enter__()
        self.is_on = True

    def end(self, step: int | None = None) -> bool:
        """Note no more.

        Args:
            step: The step that has ended, if it was sampled as a whole.

        Returns:
            False when a mode of the program's own is above this one: try again after a later step.
        """
        import torch

        depth = torch._C._len_torch_dispatch_stack()
        if not depth or torch._C._get_dispatch_stack_at(depth - 1) is not self._mode:
            return False
        self._mode.__exit__(None, None, None)
        self._mode = None
        self.is_on = False
        if step is not None:
            self.steps.add(step)
        return True

    def forget(self, is_kept: Callable[[int], bool]) -> None:
        """Let go of what has not stayed.

        Args:
            is_kept: Whether a storage is alive, by its address.
        """
        import torch

        for address in [one for one in self._made if not is_kept(one)]:
            del self._made[address]
            torch.UntypedStorage._free_weak_ref(address)

    def stack_of(self, address: int) -> Stack:
        """Where a storage was made: the user's frames, innermost first; empty if not seen.

        Args:
            address: The address of torch's own object for it.
        """
        return self._made.get(address, ())

    def _note(self, outputs: object, frame: FrameType | None) -> None:
        """Note an operator's outputs; what goes wrong here stays here."""
        stack: Stack | None = None
        with contextlib.suppress(Exception), past_user_code():
            for tensor in _tensors_in(outputs, _DEPTH):
                storage = _storage_of(tensor)
                if storage is None or storage._cdata in self._made:
                    continue
                if stack is None:
                    stack = self._user.stack(frame)
                self._made[storage._weak_ref()] = stack


def _mode_that_tells(note: Callable[[object, FrameType | None], None]) -> Any:  # noqa: ANN401
    """A mode that passes every operator on as it is, and tells of its outputs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Telling(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self,
            func: Any,  # noqa: ANN401
            types: object,
            args: Any = (),  # noqa: ANN401
            kwargs: Any = None,  # noqa: ANN401
        ) -> Any:  # noqa: ANN401
            try:
                outputs = func(*args, **(kwargs or {}))
            except BaseException:
                # The exception's traceback has this frame on it, which must keep nothing alive.
                del args, kwargs, types
                raise
            note(outputs, sys._getframe(1))
            return outputs

    return Telling()


def _compiles() -> bool:
    """Whether the program compiles functions, which a mode would send back to plain Python."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters.get("frames"))


def _tensors_in(outputs: object, depth: int) -> Iterator[Any]:
    import torch

    if issubclass(type(outputs), torch.Tensor):
        yield outputs
    elif depth and type(outputs) in {tuple, list}:
        for one in outputs:  # type: ignore[attr-defined]
            yield from _tensors_in(one, depth - 1)


def _storage_of(tensor: Any) -> Any:  # noqa: ANN401
    import torch

    try:
        return torch.Tensor.untyped_storage(tensor)
    except (RuntimeError, NotImplementedError):
        return None
