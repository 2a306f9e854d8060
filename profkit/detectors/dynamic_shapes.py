"""CMP003 dynamic-shapes: inputs have new shapes in most steps, and each allocates memory.

What it finds:
    Lines that pass an operator more than 8 new shapes after the first step, in recordings in which
    the driver allocates GPU memory in these steps. What else new shapes cost has rules of its own:
    recompiles, and algorithm-search. Changing shapes that cost nothing are not reported.

Why it matters:
    The caching allocator reuses a block for a request of about its size. A new size that fits no
    block is allocated from the driver, which takes up to a millisecond and synchronizes with the
    GPU, and blocks of the old sizes stay reserved: memory grows until all sizes have occurred. The
    cost is what the steps take less in a replay of the recording without these calls.

How to fix it:
    Pad batches to a few lengths, or sort samples by length and cut them into buckets. Let the
    largest batch be the first. ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` lets segments
    grow instead of adding new ones.

Example:
    ::

        def collate(samples):
            return pad_sequence(samples, batch_first=True)

Use instead:
    ::

        def collate(samples):
            batch = pad_sequence(samples, batch_first=True)
            return F.pad(batch, (0, -batch.shape[1] % 128))

Reads:
    Operators with the shapes of their inputs, the steps, calls for device memory (``name``,
    ``ts_ns`` and ``dur_ns`` in nanoseconds), GPU busy time in nanoseconds, source lines.

When to ignore this:
    The recording is of the first steps of a long run, in which all sizes will soon have occurred.

Source:
    "Memory management" in PyTorch's CUDA semantics (``expandable_segments``: "for jobs where the
    size of the allocations changes"); "Preallocate memory in case of variable input length" in
    PyTorch's Performance Tuning Guide.
"""

import json
from collections.abc import Iterator

from profkit.engine.families.device_memory.driver_calls import ShapeGrowth, find_growth_by_shapes
from profkit.index.distinct import distinct
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    WaitThresholds,
    at,
    counted,
    dataclass,
    find_costly_wait,
    known_locations,
    needs,
)

INFO = RuleInfo(
    id="CMP003",
    name="dynamic-shapes",
    title="New input shapes allocate memory in most steps",
    severity="warning",
    needs=(needs.SHAPES, needs.DEVICE_WORK, needs.STEPS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds(WaitThresholds):
    """When new shapes are a finding.

    Attributes:
        min_calls_count: Minimum allocations in steps with new shapes. A few fill the cache.
    """

    min_calls_count: int = 5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all allocations for new shapes."""
    growth = find_growth_by_shapes(ctx)
    if growth is None or len(growth.calls) < thresholds.min_calls_count:
        return
    wait = find_costly_wait(ctx, growth.calls, thresholds)
    if wait is None:
        return

    # New shapes enter at one operator, and all after it have new shapes because of that one.
    first = int(growth.shapes[0])
    location = ctx.location(first)
    n_steps = len(distinct(ctx.step_of(growth.shapes)))

    yield wait.finding(
        INFO,
        message=(
            f"`{ctx.events.name_of(first)}`{at(location)} gets "
            f"{counted(growth.n_shapes, 'new shape')} in {counted(n_steps, 'step')} after the "
            f"first, such as {_read_shape(ctx, growth)}. Allocating GPU memory for them "
            f"({counted(len(growth.calls), 'call')}) {wait.text}"
        ),
        fix=(
            "Pad inputs to a few sizes, or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`."
        ),
        locations=known_locations(location),
        rows=growth.calls,
        evidence={"n_shapes": growth.n_shapes, "n_steps": n_steps},
    )


def _read_shape(ctx: Context, growth: ShapeGrowth) -> str:
    """Read the shape of the first tensor of the last call: ``32 x 117``."""
    events = ctx.events
    text = events.names[int(events.input_dims.at(growth.shapes[-1:])[0])]
    # An input that is no tensor has an empty shape; of scalars alone the whole text is shown.
    sizes: list[object] = next((shape for shape in json.loads(text) if shape), [])
    return " x ".join(map(str, sizes)) or text
