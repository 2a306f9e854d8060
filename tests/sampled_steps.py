"""Builds recordings of steps whose stacks were sampled."""

from collections.abc import Callable, Sequence

from profkit.model.capture_info import CaptureInfo, OpLines, SampledFunction, SampledTime
from profkit.testing import TraceBuilder

FILE = "/work/train.py"
MS = 1_000_000
N_SAMPLES = 100


def function(
    name: str,
    line: int,
    n: int,
    *,
    callee: str = "",
    library: str = "",
    waits: bool = False,
    part: str = "",
) -> SampledFunction:
    """Return a line that ``n`` of the samples were at, 20 ms apart."""
    ns = n * 20 * MS
    place = (FILE, line, name)
    waiting_ns = ns if waits else 0
    return SampledFunction(place, n, ns, library, waiting_ns, callee, part)  # type: ignore[arg-type]


def sampled(*functions: SampledFunction) -> SampledTime:
    """Return the samples of steps."""
    n = sum(function.n for function in functions)
    ns = sum(function.ns for function in functions)
    return SampledTime(20 * MS, n, ns, list(functions), n_steps=20, steps_ns=max(ns, 1))


def op_lines(**line_of: int) -> OpLines:
    """Return the source line of operators by their name, each once in a step."""
    names = [name.replace("__", "::") for name in line_of]
    n = len(names)
    return OpLines(
        same_window=False,
        names=names,
        frames=[(FILE, line, "main", 1) for line in line_of.values()],
        modules=[],
        name=list(range(n)),
        parent=[-1] * n,
        thread=[1] * n,
        external_id=[-1] * n,
        frame=list(range(n)),
        module=[-1] * n,
    )


def recording(
    functions: Sequence[SampledFunction],
    step: Callable[[TraceBuilder], None],
    lines: OpLines | None = None,
) -> TraceBuilder:
    """Three steps, and the functions that were sampled over them and later ones."""
    info = CaptureInfo(
        version="1", name="train", steps="optimizer", sampled=sampled(*functions), lines=lines
    )
    b = TraceBuilder(capture=info)
    for _ in range(3):
        with b.step():
            step(b)
    return b


def busy_python(python_ms: float, op_ms: float = 1.0) -> Callable[[TraceBuilder], None]:
    """Return a step of Python and one operator."""

    def step(b: TraceBuilder) -> None:
        b.advance(round(python_ms * MS))
        b.compute("aten::mm", round(op_ms * MS))

    return step
