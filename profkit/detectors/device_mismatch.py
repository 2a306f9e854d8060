"""CFG004 device-mismatch: an operator failed since its tensors are on different devices.

What it finds:
    Recordings of profkit that PyTorch's error "expected all tensors to be on the same device"
    ended: the operator, the source line, and the devices of the tensors there.

Why it matters:
    The program stops. The error names two devices, and often no variable: the tensor that was left
    behind may have been created elsewhere, such as in ``__init__``, in ``forward`` or by a loader.

How to fix it:
    Move what is on the wrong device. ``module.to(device)`` moves parameters and buffers in place,
    but no other attributes: register those with ``register_buffer``. ``tensor.to(device)`` returns
    another tensor, which has to be assigned. Create tensors in ``forward`` with
    ``device=x.device``.

Example:
    ::

        model.to("cuda")
        x.to("cuda")
        y = model(x)

Use instead:
    ::

        model.to("cuda")
        x = x.to("cuda")
        y = model(x)

Reads:
    What profkit recorded when the error ended the program: the error, its line and the tensors
    there; and the operators, of which the last one failed.

When to ignore this:
    The program catches the error.

Source:
    ``torch.nn.Module.to`` and ``torch.Tensor.to`` in PyTorch's documentation; "CUDA semantics"
    among its notes.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.rule import (
    Category,
    Context,
    DeviceMismatch,
    Finding,
    Location,
    Need,
    RuleInfo,
    at,
    dataclass,
    known_locations,
    needs,
)

END: Final = Need(
    name="end of the program",
    reason="How the program ended was not recorded.",
    remedy="Record with `profkit run` or `profkit.trace`.",
    is_met=lambda ctx: ctx.trace.capture is not None,
    requires=(needs.TRACE,),
)

INFO = RuleInfo(
    id="CFG004",
    name="device-mismatch",
    title="Tensors of one operator are on different devices",
    severity="warning",
    needs=(END,),
    since="0.1.0",
    no_example="The program with the problem ends with it.",
)


@dataclass(frozen=True)
class Thresholds:
    """No settings: the error either ended the program or not."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if this error ended the program."""
    mismatch = None if ctx.trace.capture is None else ctx.trace.capture.mismatch
    if mismatch is None:
        return

    file, line, function = mismatch.place
    # Only some forms of the error name the operator, as in `wrapper_CUDA_addmm`.
    operator = mismatch.operator or _find_last_operator(ctx)
    location = Location(file or None, line if file else None, function or None, operator or None)
    subject = f"`{operator}`" if operator else "An operator"
    devices = _describe_devices(mismatch)
    yield INFO.finding(
        confidence="high",
        message=f"{subject}{at(location)} failed: {devices or mismatch.message}.",
        fix=(
            "Move the tensors to one device: `x = x.to(device)` for a tensor, which must be "
            "assigned, `module.to(device)` for a module."
        ),
        locations=known_locations(location),
        evidence={"error": mismatch.message},
    )


def _find_last_operator(ctx: Context) -> str:
    """Find the outermost operator around the last one to begin."""
    rows = ctx.events.rows_of(Category.OP)
    if not len(rows):
        return ""
    last = rows[np.argmax(ctx.events.ts_ns[rows])]
    return ctx.events.name_of(int(ctx.tree.outermost_op[last]))


def _describe_devices(mismatch: DeviceMismatch) -> str:
    """``x is on cpu, weight of Linear and bias of Linear are on cuda:0``; empty if unknown."""
    names: dict[str, list[str]] = defaultdict(list)
    for tensor in mismatch.tensors:
        names[tensor.device].append(f"`{tensor.name}`")
    if len(names) < 2:  # noqa: PLR2004  (the others are not known)
        return ""

    return ", ".join(
        f"{' and '.join(unique)} {'is' if len(unique) == 1 else 'are'} on {device}"
        for device, tensors in names.items()
        for unique in [dict.fromkeys(tensors)]
    )
