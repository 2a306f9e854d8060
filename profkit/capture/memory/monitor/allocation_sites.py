# ruff: noqa: SLF001  (the stack of modes, and weak references to storages, have no public names)
"""Records the allocation sites of tensors that stay alive.

For a few steps, once growth is seen, every operator's output is recorded with its Python stack.
That takes some ten microseconds per operator, so only a few steps are sampled: what is still alive
some steps later is retained with its stack, and the rest is dropped. If tensors become larger and
larger, the operators' inputs are recorded too: a tensor that keeps more in every step is computed
from the one before, while a larger batch is not.

Source: ``torch.utils._python_dispatch.TorchDispatchMode``. Modes form a stack per thread, so this
one is pushed, and popped only when no mode of the program is above it. It makes torch dispatch each
operator twice, so it is popped before a profiler of the program begins. Other threads have stacks
of their own, which cannot be reached. What they allocate is found through ``tracemalloc``, which
has the traceback of each tensor's Python object.
"""

import contextlib
import linecache
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

from profkit.capture.memory.holders.untracked_containers import live_tensors
from profkit.capture.memory.monitor.own_tracing import OwnTracing
from profkit.capture.memory.monitor.tracemalloc_lines import DEEP_FRAMES, user_stack
from profkit.capture.process import program_profilers, signals
from profkit.capture.process.compiling import has_compiled
from profkit.capture.process.frames import find_caller
from profkit.capture.process.objects import is_exactly, no_torch_function
from profkit.capture.source.user_code import Stack, UserCode, frames_of
from profkit.model.live_memory import Leak
from profkit.readers.process_memory import garbage_collection_paused

_DEPTH: Final = 2
"""Nesting of an operator's inputs and outputs in tuples and lists."""
_MIN_KEPT: Final = 0.5
"""Least size of what a longer tensor keeps, as a share of its own."""


_Before = TypeVar("_Before")


class OperatorCall(NamedTuple):
    """One call of an operator.

    Attributes:
        operator: Such as ``aten.add.Tensor``.
        frame: The Python function that called it, or None where there is none on the stack.
    """

    operator: object
    inputs: object
    outputs: object
    frame: FrameType | None


class AllocationSampler:
    """Records the allocation sites of storages for a few steps.

    Attributes:
        steps: Steps that were sampled from start to end.
        is_on: Whether a step is being sampled.
    """

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.is_on = False
        self._mode: RecordingMode | None = None
        self._stacks: dict[int, Stack] = {}
        self._kept_bytes: dict[int, int] = {}
        self._earlier: Callable[[int], bool] | None = None
        self._existed: Callable[[int], bool] | None = None
        self._tracing = OwnTracing()
        self._user_code = UserCode()

    @property
    def is_in_threads(self) -> bool:
        """Tell whether allocations of other threads are being recorded, too."""
        return self._tracing.is_on

    def can_begin(self) -> bool:
        """Tell whether a dispatch mode can be pushed now without side effects on the program."""
        return not self.is_on and can_record()

    def begin(
        self,
        earlier: Callable[[int], bool] | None = None,
        in_threads: Callable[[int], bool] | None = None,
    ) -> None:
        """Record allocations from here on.

        Args:
            earlier: Whether a longer storage may replace the one at an address, which exists
                already. If given, :meth:`is_extension` is recorded too.
            in_threads: Whether the storage at an address existed before. If given, allocations of
                other threads are recorded too, which is slower.
        """
        self._earlier = earlier
        self._existed = in_threads
        if in_threads is not None:
            self._tracing.begin(DEEP_FRAMES)
        self._mode = RecordingMode(self._record, lambda: None)
        self.is_on = True
        program_profilers.subscribe(self._on_program_profiler)

    def end(self, step: int | None = None) -> bool:
        """Stop recording, if it is on.

        Args:
            step: The step that has ended, if all of it was sampled.

        Returns:
            False if it was off, or if a mode of the program is above this one: try again after a
            later step.
        """
        if self._mode is None or not self._mode.pop():
            return False

        self._mode = None
        self._add_traced()
        self._tracing.end()
        self.is_on = False
        program_profilers.unsubscribe(self._on_program_profiler)
        if step is not None:
            self.steps.add(step)
        return True

    def _on_program_profiler(self, _name: str) -> None:
        self.end()

    def retain(self, is_alive: Callable[[int], bool]) -> None:
        """Drop the storages that are not alive any more, by their address."""
        import torch

        for address in [address for address in self._stacks if not is_alive(address)]:
            del self._stacks[address]
            self._kept_bytes.pop(address, None)
            torch.UntypedStorage._free_weak_ref(address)

    def stack_of(self, address: int) -> Stack:
        """Return the allocation site of a storage, innermost user frame first, or an empty stack.

        Args:
            address: The address of torch's storage object.
        """
        return self._stacks.get(address, ())

    def is_extension(self, address: int) -> bool:
        """Tell whether a storage was computed from a shorter one, most of which it may keep.

        Args:
            address: The address of torch's storage object.
        """
        return address in self._kept_bytes

    def _add_traced(self) -> None:
        """Add the allocation sites of the tensors that other threads have allocated."""
        existed = self._existed
        if existed is None or not self._tracing.is_on:
            return
        with garbage_collection_paused(), no_torch_function():
            for tensor in live_tensors():
                storage = _storage_of(tensor)
                # A new tensor may be a view of what was allocated long before.
                if storage is None or storage._cdata in self._stacks or existed(storage._cdata):
                    continue
                traceback = self._tracing.traceback_of(tensor)
                stack = () if traceback is None else user_stack(traceback, self._user_code)
                if stack:
                    self._stacks[storage._weak_ref()] = stack

    def _record(self, call: OperatorCall, _before: None) -> None:
        """Record an operator's outputs; errors must not reach the program."""
        stack: Stack | None = None

        # A handler of the program runs after the block: what it raises is not suppressed.
        with signals.held(), contextlib.suppress(Exception), no_torch_function():
            kept_bytes = (
                []
                if self._earlier is None
                else self._read_earlier_bytes(call.inputs, self._earlier)
            )
            for tensor in tensors_in(call.outputs, _DEPTH):
                storage = _storage_of(tensor)
                if storage is None:
                    continue
                if storage._cdata not in self._stacks:
                    if stack is None:
                        stack = self._user_code.stack(call.frame)
                    self._stacks[storage._weak_ref()] = stack
                if kept_bytes and self._earlier is not None and not self._earlier(storage._cdata):
                    n_bytes = storage.nbytes()
                    shorter = (
                        n_kept for n_kept in kept_bytes if _MIN_KEPT * n_bytes <= n_kept < n_bytes
                    )
                    if (origin := next(shorter, None)) is not None:
                        self._kept_bytes[storage._cdata] = origin

    def _read_earlier_bytes(self, inputs: object, is_earlier: Callable[[int], bool]) -> list[int]:
        """Return the bytes of earlier storages that inputs are, or were computed from."""
        storages = [_storage_of(tensor) for tensor in tensors_in(inputs)]
        kept_bytes = [
            self._kept_bytes.get(storage._cdata) for storage in storages if storage is not None
        ]
        earlier_bytes = [
            storage.nbytes()
            for storage in storages
            if storage is not None and is_earlier(storage._cdata)
        ]
        return [*filter(None, kept_bytes), *earlier_bytes]


def with_site(leak: Leak, stack: Stack) -> Leak:
    """Return a leak with its allocation site; unchanged if that is not known."""
    if not stack:
        return leak
    frames = frames_of(stack)
    code = linecache.getline(frames[0].file, frames[0].line or 0).strip()
    return replace(leak, stack=frames, stack_basis="seen", code=code)


def can_record() -> bool:
    """Tell whether a dispatch mode can be pushed now without side effects on the program."""
    import torch

    if program_profilers.is_recording():
        return False
    # With ``torch.compile``, a mode would make the program run eagerly instead.
    return not (torch._C._len_torch_dispatch_stack() or has_compiled())


class RecordingMode:
    """Runs every operator of this thread unchanged and records it, until it is popped.

    Args:
        record: Called after each operator.
        before: Called before it; ``record`` receives its result.
    """

    def __init__(
        self, record: Callable[[OperatorCall, _Before], None], before: Callable[[], _Before]
    ) -> None:
        self._mode = _make_mode_class()(record, before)
        self._mode.__enter__()

    def pop(self) -> bool:
        """Pop the mode; return False, and do nothing, if a mode of the program is above it."""
        import torch

        # torch's own exit pops whichever mode is on top.
        depth = torch._C._len_torch_dispatch_stack()
        if not depth or torch._C._get_dispatch_stack_at(depth - 1) is not self._mode:
            return False
        self._mode.__exit__(None, None, None)
        return True


@cache
def _make_mode_class() -> Any:  # noqa: ANN401  (a class)
    """Return the class of the mode of torch, whose arguments are those of :class:`RecordingMode`.

    There is one, as a class is garbage in cycles: of one for each step some 40 KB would stay until
    the next collection of the oldest objects, and seem to be the program's growth.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):
        supports_higher_order_operators = True

        def __init__(
            self, record: Callable[[OperatorCall, object], None], before: Callable[[], object]
        ) -> None:
            super().__init__()
            self._record = record
            self._before = before

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # Else the first operator imports torch's compiler: 800 modules, 27 MB and seconds.
            return False

        def __torch_dispatch__(
            self,
            func: Any,  # noqa: ANN401
            types: object,
            args: Any = (),  # noqa: ANN401
            kwargs: Any = None,  # noqa: ANN401
        ) -> Any:  # noqa: ANN401
            began = self._before()
            try:
                outputs = func(*args, **(kwargs or {}))
            except BaseException:
                # The exception's traceback refers to this frame, which must keep nothing alive.
                del args, kwargs, types
                raise

            inputs = args, *(kwargs or {}).values()
            self._record(OperatorCall(func, inputs, outputs, find_caller()), began)
            return outputs

    return Recording


def tensors_in(outputs: object, depth: int = _DEPTH + 1) -> Iterator[Any]:
    """Yield the tensors in an operator's inputs or outputs, nested so deep in tuples and lists."""
    import torch

    if issubclass(type(outputs), torch.Tensor):
        yield outputs
    elif depth and is_exactly(outputs, tuple, list):
        for item in outputs:  # type: ignore[attr-defined]
            yield from tensors_in(item, depth - 1)


def _storage_of(tensor: Any) -> Any:  # noqa: ANN401
    """Return the storage of a tensor, or None without one."""
    import torch

    try:
        return torch.Tensor.untyped_storage(tensor)
    except RuntimeError:  # a layout without storage, such as sparse
        return None
