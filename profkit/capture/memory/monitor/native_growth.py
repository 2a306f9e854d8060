# ruff: noqa: SLF001  (the frame of a caller has no other name)
"""Finds the lines and operators during which memory grows that no Python object owns.

For a few steps the C heap is measured before and after each operator, and at each line of the
user's code. What an operator allocates for its outputs is a tensor's. What it allocates for shapes
that the steps before did not have may be a cache of plans, as oneDNN has one of 1024 primitives,
and is counted apart.

Source: ``sys.settrace`` of Python's library reference, which is left to the program if it uses it;
``ONEDNN_PRIMITIVE_CACHE_CAPACITY`` in oneDNN's developer guide; ``use_mkldnn_matmul`` in torch's
``aten/src/ATen/native/mkldnn/Matmul.cpp``.
"""

import contextlib
import sys
from types import FrameType
from typing import Any, Final, NamedTuple

from profkit.capture.memory.holders.autograd_graphs import storage_of
from profkit.capture.memory.monitor.allocation_sites import (
    OperatorCall,
    RecordingMode,
    can_record,
    tensors_in,
)
from profkit.capture.process import program_profilers, signals
from profkit.capture.process.malloc_stats import Heap
from profkit.capture.process.objects import no_torch_function
from profkit.capture.source.user_code import Place, UserCode
from profkit.patterns import regex

_N_STEPS: Final = 4
"""Steps that are measured; those after the first show what repeats."""
_MAX_READS: Final = 20_000
"""Measurements of the heap, of some microseconds each, after which the rest is left out."""

MAX_MEASUREMENTS: Final = 2
"""Measurements of a few steps each: the first comes early, and may miss what grows later."""
_ONEDNN: Final = regex(r"convolution|mkldnn|onednn")
"""Operators of oneDNN, which keeps a plan for each shape."""
_ONEDNN_IN_LOW_PRECISION: Final = regex(r"::(addmm|mm|bmm|baddbmm|addbmm|addmv|linear)$")
"""Operators that are oneDNN's in 16 bits, and MKL's otherwise."""
_BYTES_PER_TENSOR: Final = 2_500
"""Upper bound of the host memory of a tensor beside its storage, which is the tensor's."""
_LOW_PRECISION: Final = frozenset({"torch.bfloat16", "torch.float16"})


class NativeSite(NamedTuple):
    """Where memory was allocated: a source line, and the operator that it runs, or empty."""

    place: Place
    operator: str


class NativeGrowth(NamedTuple):
    """Bytes per step that the C heap grew beyond tensors.

    Attributes:
        by_site: By line and operator, in shapes that had been there before.
        for_new_shapes: By line and operator, for shapes that had not.
        plans: The part of it that is in operators of oneDNN.
    """

    by_site: dict[NativeSite, float]
    for_new_shapes: dict[NativeSite, float]
    plans: dict[NativeSite, float]

    @property
    def new_shapes(self) -> float:
        """Return the bytes per step in all operators, for shapes that had not been there before."""
        return sum(self.for_new_shapes.values())

    @property
    def in_operators(self) -> float:
        """Return the bytes per step that operators allocate, which no Python object owns."""
        repeated = (rate for site, rate in self.by_site.items() if site.operator)
        return sum(rate for rate in (*repeated, *self.plans.values()) if rate > 0)


class _HeapReadings:
    """What the C heap has grown by at lines and in operators.

    Attributes:
        by_site: Bytes by line and operator.
        for_new_shapes: The same for shapes that had not been there before.
        planned: Sites of operators that keep plans.
        n: Readings of the heap.
        last_bytes: The last one at a line.
        place: The line that is running.
        is_counting: Whether the heap is read. Not in the first step, of which only shapes are used:
            reading takes as long as a small operator.
    """

    def __init__(self) -> None:
        self.by_site: dict[NativeSite, int] = {}
        self.for_new_shapes: dict[NativeSite, int] = {}
        self.planned: set[NativeSite] = set()
        self.n = 0
        self.last_bytes = 0
        self.place: Place | None = None
        self.is_counting = False
        self._heap = Heap()

    @property
    def is_possible(self) -> bool:
        """Tell whether the C library reports the size of its heap."""
        return self._heap.allocated() is not None

    @property
    def is_exhausted(self) -> bool:
        """Tell whether the heap was read so often that the rest is left out."""
        return self.n > _MAX_READS

    def read(self) -> int:
        """Read the bytes on the C heap; 0 while they are not counted."""
        self.n += 1
        if not self.is_counting:
            return 0
        allocated = self._heap.allocated()
        return 0 if allocated is None else allocated.bytes

    def add(
        self,
        operator: str,
        n_bytes: int,
        *,
        is_new_shape: bool = False,
        keeps_plans: bool = False,
    ) -> None:
        """Add what an operator, or the rest of a line, has allocated."""
        if self.place is None or not n_bytes or not self.is_counting:
            return

        site = NativeSite(self.place, operator)
        sums = self.for_new_shapes if is_new_shape else self.by_site
        sums[site] = sums.get(site, 0) + n_bytes
        if keeps_plans:
            self.planned.add(site)

    def begin_counting(self) -> None:
        """Count from here on: the first step shows what is allocated once."""
        self.is_counting = True
        self.last_bytes = self.read()

    def per_step(self, n_steps: int) -> NativeGrowth:
        """Return the growth over some steps."""
        by_site, for_new_shapes = (
            {site: n_bytes / n_steps for site, n_bytes in sums.items()}
            for sums in (self.by_site, self.for_new_shapes)
        )
        plans = {site: rate for site, rate in for_new_shapes.items() if site in self.planned}
        return NativeGrowth(by_site, for_new_shapes, plans)


class NativeSampler:
    """Measures a few steps.

    Attributes:
        is_on: Whether steps are being measured, or a mode of the program is still above the one
            that measured them.
        growth: What was found, once it is.
        n_begun: How often measuring was begun.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.growth: NativeGrowth | None = None
        self.n_begun = 0
        self._is_measured = False
        self._readings = _HeapReadings()
        self._user_code = UserCode()
        self._mode: RecordingMode | None = None
        self._first = 0
        self._is_in_operator = False
        self._known: set[object] = set()
        self._seen: set[object] = set()

    def begin(self, step: int) -> None:
        """Measure the steps after this one, unless the program uses what that needs."""
        self.n_begun += 1
        if sys.gettrace() is not None or not can_record() or not self._readings.is_possible:
            return
        self._first, self._is_measured, self._readings = step, False, _HeapReadings()
        self._mode = RecordingMode(self._count_operator, self._read_before_operator)
        self.is_on = True
        program_profilers.subscribe(self._on_program_profiler)

        # From here on each call and each line of the user's code is seen.
        self._mark_frames(self._at_line)
        sys.settrace(self._at_call)

    def advance(self, step: int) -> bool:
        """Note that a step has ended, and return whether it was the last one."""
        n_steps = step - self._first
        if n_steps == 1:
            self._readings.begin_counting()
        self._known |= self._seen

        if n_steps >= _N_STEPS or self._readings.is_exhausted:
            # A mode of the program may keep the one that measures alive for further steps.
            if not self._is_measured:
                self.growth = self._readings.per_step(max(n_steps - 1, 1))
                self._is_measured = True
            self.end()
        return not self.is_on

    def end(self) -> None:
        """Stop measuring, if it is on; again after a later step if a mode is above this one."""
        if not self.is_on:
            return

        # The program may have set a tracer of its own meanwhile, which stays.
        if sys.gettrace() == self._at_call:
            sys.settrace(None)
        self._mark_frames(None)
        program_profilers.unsubscribe(self._on_program_profiler)

        if self._mode is not None and self._mode.pop():
            self._mode = None
            self.is_on = False

    def _on_program_profiler(self, _name: str) -> None:
        self.end()

    def _mark_frames(self, tracer: Any) -> None:  # noqa: ANN401  (as typeshed has it)
        """Have the running functions of the user report their lines, or report them no more."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            is_marked = frame.f_trace == self._at_line
            is_user = self._user_code.is_user_file(frame.f_code.co_filename)
            is_free = is_user and frame.f_trace is None
            if is_marked or (is_free and tracer is not None):
                frame.f_trace = tracer
            if self._readings.place is None and is_free:
                code = frame.f_code
                self._readings.place = code.co_filename, frame.f_lineno, code.co_name
            frame = frame.f_back

    def _at_call(self, frame: FrameType, _event: str, _arg: object) -> Any:  # noqa: ANN401
        """Return the tracer of the lines of a function that begins; None for a library's."""
        if not self.is_on or self._readings.is_exhausted:
            return None
        if not self._user_code.is_user_file(frame.f_code.co_filename):
            return None
        self._move_to(frame)
        return self._at_line

    def _at_line(self, frame: FrameType, event: str, _arg: object) -> Any:  # noqa: ANN401
        """Note that a line begins, or that a function ends and its caller goes on."""
        if event == "exception":
            self._is_in_operator = False
        if self.is_on and event in {"line", "return"}:
            self._move_to(frame.f_back if event == "return" else frame)
        return None if self._readings.is_exhausted else self._at_line

    def _move_to(self, frame: FrameType | None) -> None:
        """Add what the line before has allocated, and go on with another one."""
        readings = self._readings
        if self._is_in_operator or readings.is_exhausted:
            return
        n_bytes = readings.read()
        readings.add("", n_bytes - readings.last_bytes)
        readings.place, readings.last_bytes = self._user_code.innermost(frame), n_bytes

    def _read_before_operator(self) -> int:
        """Return the bytes on the heap before an operator."""
        self._is_in_operator = True
        return self._readings.read()

    def _count_operator(self, call: OperatorCall, before: int) -> None:
        """Count what an operator has allocated beyond its outputs."""
        readings = self._readings
        added = readings.read() - before
        self._is_in_operator = False

        # A handler of the program runs after the block: what it raises is not suppressed.
        with signals.held(), contextlib.suppress(Exception), no_torch_function():
            inputs, outputs = list(tensors_in(call.inputs)), list(tensors_in(call.outputs))
            old = {storage[0] for tensor in inputs if (storage := storage_of(tensor))}
            new = {storage[0]: storage[1] for tensor in outputs if (storage := storage_of(tensor))}
            made = [n_bytes for key, n_bytes in new.items() if key not in old]
            beyond = added - sum(made)
            beyond -= min(max(beyond, 0), _BYTES_PER_TENSOR * len(outputs))

            shapes = tuple((str(tensor.dtype), tuple(tensor.shape)) for tensor in inputs)
            name = str(call.operator).rpartition(".")[0].replace(".", "::")
            self._seen.add((name, shapes))
            readings.add(
                name,
                beyond,
                is_new_shape=(name, shapes) not in self._known,
                keeps_plans=keeps_plans(name, {dtype for dtype, _ in shapes}),
            )
        # The line has what the operators in it do not account for.
        readings.last_bytes += added


def keeps_plans(operator: str, dtypes: set[str]) -> bool:
    """Tell whether an operator is oneDNN's, which keeps a plan for each shape."""
    if _ONEDNN.search(operator):
        return True
    return bool(_ONEDNN_IN_LOW_PRECISION.search(operator)) and not dtypes.isdisjoint(_LOW_PRECISION)
