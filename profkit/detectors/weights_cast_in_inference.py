"""KER012 weights-cast-in-inference: ``autocast`` casts all weights again in every forward pass.

What it finds:
    Casts of float32 weights and biases within ``linear`` and convolutions, in recordings without
    any backward pass. Casts of activations do not count.

Why it matters:
    ``torch.autocast`` leaves weights in float32 and casts them where they are used. It reuses a
    cast only within one block, and under ``torch.no_grad()`` or ``inference_mode()`` not if the
    weight requires no gradient. So each pass reads all weights in four bytes per element and
    writes them in two, besides a launch for each. With small batches that takes as long as the
    layers themselves. The cost is what the steps take less in a replay of the recording without
    these casts. The memory of half the weights is not in the figure.

How to fix it:
    Cast the model once: ``model.half()`` or ``model.bfloat16()``, and its inputs. Norms then
    compute in half precision with float32 inside; keep single modules in float32 if they need it.

Example:
    ::

        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
            for x in loader:
                y = model(x)

Use instead:
    ::

        model.bfloat16()
        with torch.inference_mode():
            for x in loader:
                y = model(x.bfloat16())

Reads:
    Operators with shapes and types of their inputs (``ts_ns`` and ``dur_ns`` in nanoseconds), the
    kernels that they launched, the steps, source lines.

When to ignore this:
    The recording is of the forward part of a training step, which needs weights in float32: where
    gradients were enabled, the confidence is low. Or the model is evaluated between epochs.

Source:
    ``aten/src/ATen/autocast_mode.h`` (``cached_cast``: only leaves that require a gradient);
    "Autocasting" in PyTorch's documentation of ``torch.amp``; ``torch.nn.Module.half``.
"""

from collections.abc import Iterator
from typing import Final

from profkit.index.compute.inputs import parse_inputs
from profkit.index.distinct import distinct, united
from profkit.index.host.cast_parameters import find_cast_parameters
from profkit.index.intervals import covered_by, unite
from profkit.index.runtime_calls import names_matching
from profkit.rule import (
    MISSING,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    in_windows,
    measure_saving,
    needs,
    time_per_step,
    times_per_step,
    torch_names,
)

INFO = RuleInfo(
    id="KER012",
    name="weights-cast-in-inference",
    title="Weights cast to half precision in every forward pass",
    severity="warning",
    needs=(needs.SHAPES,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When casts of weights are a finding.

    Attributes:
        min_casts_count: Minimum casts per step, as in a whole network.
        min_saved_share: Minimum share of the steps that they take; below a thousandth no step gets
            measurably shorter.
        warning_share: Share from which it is a warning.
    """

    min_casts_count: int = 4
    min_saved_share: float = 0.001
    warning_share: float = 0.02


_METHODS: Final = {5: "`model.half()`", 15: "`model.bfloat16()`"}
"""The methods of a model by the number of the type that they cast to.

Source: ``c10/core/ScalarType.h``.
"""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all casts of parameters in a recording of inference."""
    # Training needs float32 weights to add small updates to.
    if names_matching(ctx.events, torch_names.TRAINING)[ctx.events.name].any():
        return
    casts = find_cast_parameters(ctx.events, ctx.tree)
    casts = casts[in_windows(ctx, casts)]
    if len(casts) < thresholds.min_casts_count * max(1, len(ctx.steps)):
        return

    # On a CPU a cast launches nothing, and its operator alone is the cost.
    work, _ = ctx.launched_by(casts)
    saving = measure_saving(ctx, ProgramChange(scaled=((united(casts, work), 0.0),)))
    if not saving.reaches(thresholds.min_saved_share):
        return

    # Casts with gradients may belong to a training whose backward passes were not recorded.
    has_gradients = bool((ctx.events.sequence.at(casts) != MISSING).any())
    is_warning = saving.severity(thresholds.warning_share) == "warning" and not has_gradients
    locations = find_costliest_lines(ctx, casts)
    on_host, on_device = covered_by(ctx.events, casts), covered_by(ctx.events, work)
    on_gpu = f", and the GPU {time_per_step(ctx, on_device.total_ns)}" if len(work) else ""

    yield saving.finding(
        INFO,
        severity="warning" if is_warning else "note",
        confidence="low" if has_gradients else "medium",
        message=(
            f"Float32 weights and biases are cast{at_first(locations)} "
            f"{times_per_step(ctx, len(casts))}, though nothing trains them. This takes the host "
            f"{time_per_step(ctx, on_host.total_ns)}{on_gpu}."
        ),
        fix=(
            f"Cast the model once with {_find_method(ctx, casts)}, and its inputs, instead of "
            "running it under `torch.autocast`."
        ),
        locations=locations,
        rows=casts,
        evidence={"host_ns": on_host.total_ns, "device_ns": on_device.total_ns},
        spans=unite(on_host, on_device).pairs(),
    )


def _find_method(ctx: Context, casts: Rows) -> str:
    """Return the method that casts a model to the type of the casts; both where it is unknown."""
    values = distinct(ctx.events.concrete_inputs.at(casts))
    types = [
        inputs.value(1)
        for number in values[values != MISSING].tolist()
        if (inputs := parse_inputs("[]", "", ctx.events.names[number])) is not None
    ]
    methods = [method for number, method in _METHODS.items() if number in types]
    return methods[0] if len(methods) == 1 else " or ".join(_METHODS.values())
