"""KER008 repeated-copies: tensors are copied into another memory layout in every step.

What it finds:
    Lines that call ``contiguous()``, or ``reshape()`` and ``flatten()`` where a view is impossible,
    in every step, and whose copies take a share of the GPU's time. Casts, ``clone()``, ``copy_()``
    and copies within other operators do not count: the program wants their result.

Why it matters:
    Such a copy computes nothing: it reads and writes the whole tensor, mostly because of a
    ``transpose()`` or ``permute()`` before it, and holds both tensors in memory. The cost is what
    the steps take less in a replay of the recording without these copies.

How to fix it:
    Leave out ``contiguous()`` where the next operator takes any strides, as matmuls, elementwise
    operators and ``scaled_dot_product_attention`` do. Arrange dimensions so that the last one stays
    last: a ``view()`` then suffices. ``torch.compile`` fuses copies into the kernels around them.

Example:
    ::

        q = q.view(b, s, h, d).transpose(1, 2).contiguous()
        y = F.scaled_dot_product_attention(q, k, v)

Use instead:
    ::

        q = q.view(b, s, h, d).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)

Reads:
    Kernels (``ts_ns`` and ``dur_ns`` in nanoseconds), the operators that launched them and those
    around these, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The next operator needs the layout, as ``view()`` and many custom kernels do, or reads the copy
    several times and faster than the strided tensor.

Source:
    ``torch.Tensor.contiguous``, ``torch.reshape`` and "Tensor Views" in PyTorch's documentation;
    ``aten/src/ATen/native/TensorShape.cpp`` (``reshape``).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.python_calls import find_library_function, may_be_torchs, place_of_call
from profkit.index.device.elementwise import find_layout_copies
from profkit.index.distinct import are_among, distinct
from profkit.rule import (
    Context,
    Finding,
    ProgramChange,
    RuleInfo,
    busy_ns,
    dataclass,
    device_time,
    in_windows,
    measure_saving,
    needs,
    time_with_busy_share,
    times_per_step,
)

INFO = RuleInfo(
    id="KER008",
    name="repeated-copies",
    title="Tensors copied into another layout",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When copies are a finding.

    Attributes:
        min_copies_count: Minimum copies by one line; a single one is set-up.
        min_busy_share: Minimum share of the GPU's busy time that one line's copies take. In
            attention by hand they are needed and take 1 to 3 %.
        warning_share: Share of the steps without them from which it is a warning.
    """

    min_copies_count: int = 2
    min_busy_share: float = 0.03
    warning_share: float = 0.01


_METHODS: Final = ("contiguous", "reshape", "flatten")


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that copies tensors into another layout."""
    work, called = find_layout_copies(ctx.events, ctx.tree, ctx.launches)
    inside = in_windows(ctx, called)
    work, called = work[inside], called[inside]
    # A line that copies less than once per step sets something up.
    n_min = max(thresholds.min_copies_count, len(ctx.steps))

    for location, ops in ctx.by_line(distinct(called)):
        copies = work[are_among(called, ops)]
        spent = device_time(ctx, copies)
        share = spent.total_ns / busy_ns(ctx)
        if len(copies) < n_min or share < thresholds.min_busy_share:
            continue

        saving = measure_saving(ctx, ProgramChange(scaled=((copies, 0.0),)))
        names = {ctx.events.name_of(row).removeprefix("aten::") for row in ops.tolist()}
        methods = " and ".join(f"`.{name}()`" for name in _METHODS if name in names)
        caller = find_library_function(ctx, ops)
        place = place_of_call(caller, location)

        yield saving.finding(
            INFO,
            severity=saving.severity(thresholds.warning_share),
            confidence="medium",
            message=(
                f"{methods}{place} copies tensors into another layout, "
                f"{times_per_step(ctx, len(copies))}: "
                f"{time_with_busy_share(ctx, spent.total_ns)}."
            ),
            fix=_suggest_fix(methods, caller),
            locations=(location,),
            rows=copies,
            evidence={"busy_share": round(share, 4)},
            spans=spent.pairs(),
        )


def _suggest_fix(methods: str, caller: str) -> str:
    """Suggest a fix; a library's copies are not the program's to leave out.

    Args:
        caller: The function of a library that copies, or empty.
    """
    if not caller:
        return (
            f"Leave out {methods} where the next operator takes any strides, as matmuls and "
            "`F.scaled_dot_product_attention` do, or fuse the copies with `torch.compile`."
        )
    newer = "" if may_be_torchs(caller) else ", or try a newer version of the library"
    return f"Fuse the copies with `torch.compile`{newer}."
