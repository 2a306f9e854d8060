"""KER013 slow-convolutions: convolutions on the CPU run without its fast library.

What it finds:
    Operators such as ``_slow_conv2d_forward`` that take a share of the steps on the CPU: PyTorch's
    general convolution, which it runs where oneDNN has none for the type or the machine.

Why it matters:
    A convolution in float16 or bfloat16 takes 12 to 27 times as long as in float32 on a CPU without
    arithmetic for these types (measured with torch 2.13). Models that were saved for a GPU are
    often loaded in half precision. The cost is a replay in which they take an assumed tenth, a
    little more than the twelfth that was measured at most.

How to fix it:
    Leave out ``torch.autocast`` on the CPU, or convert the model to float32. On a Mac with Apple's
    chips, PyTorch has no fast convolution for the CPU in any type: run the model on ``"mps"``.
    Elsewhere look whether ``torch.backends.mkldnn`` is available and enabled.

Example:
    ::

        model = load_model(torch_dtype=torch.float16)
        y = model(x.half())

Use instead:
    ::

        model = load_model(torch_dtype=torch.float32)
        y = model(x)

Reads:
    Operators (``name``, ``Input type``, ``ts_ns`` and ``dur_ns`` in nanoseconds), their launches,
    the steps, the source lines.

When to ignore this:
    The program runs on a GPU elsewhere, and only this recording was made on a CPU.

Source:
    ``use_mkldnn`` in ``aten/src/ATen/native/Convolution.cpp``; "MPS backend" in PyTorch's notes.
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.input_types import are_of_types, first_types
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    Category,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    find_rows,
    known_locations,
    measure_saving,
    needs,
    regex,
    select_on_cpu,
    time_with_share,
    times_per_step,
)

INFO = RuleInfo(
    id="KER013",
    name="slow-convolutions",
    title="Convolutions on the CPU run without its fast library",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When slow convolutions are a finding.

    Attributes:
        min_saved_share: Minimum share of the steps that the fix saves: where a change of the type
            pays for the edit.
        assumed_kept_share: Assumed share of their time that fast convolutions take: at most a
            twelfth was measured for float16.
    """

    min_saved_share: float = 0.05
    assumed_kept_share: float = 0.1


_SLOW: Final = regex(
    r"^aten::_?slow_conv(2d|3d|_dilated[23]d|_transpose[23]d)(_forward|_backward)?$"
)
_FAST: Final = regex(r"^(aten::mkldnn_convolution|mkldnn::_convolution\w*)$")
_HALF_TYPES: Final = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_DOUBLE: Final = ("double",)
_FIX_TYPE: Final = (
    "Compute in float32 on the CPU: leave out `torch.autocast`, or convert the model and its "
    "inputs with `.float()`. This CPU has no fast convolution in {}."
)
_FIX_MACHINE: Final = (
    'On a Mac, run the model on `torch.device("mps")`; elsewhere see whether '
    "`torch.backends.mkldnn.is_available()`, and let nothing disable it."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that runs slow convolutions on the CPU."""
    rows = find_rows(ctx, _SLOW, Category.OP)
    if not len(rows):
        return

    # A GPU without cuDNN runs operators of the same names.
    rows = select_on_cpu(ctx, rows)
    # In float64 oneDNN has none, and another rule says what float32 saves.
    rows = rows[~are_of_types(ctx, rows, _DOUBLE)]
    has_library = rows_named(ctx.events, _FAST, Category.OP).any()
    for location, line_rows in ctx.by_line(rows):
        # Where others run in oneDNN, torch itself has left it out for small ones.
        kind = _find_half_type(ctx, line_rows)
        if has_library and not kind:
            continue
        change = ProgramChange(scaled=((line_rows, thresholds.assumed_kept_share),))
        saving = measure_saving(ctx, change, "estimate")
        if not saving.reaches(thresholds.min_saved_share):
            continue

        spent = covered_by(ctx.events, line_rows)
        yield saving.finding(
            INFO,
            confidence="high" if kind else "medium",
            message=(
                f"Convolutions{f' in {kind}' if kind else ''}{at(location)} run "
                f"{times_per_step(ctx, len(line_rows))} in PyTorch's general, slow operator, which "
                f"takes {time_with_share(ctx, spent.total_ns)}."
            ),
            fix=_FIX_TYPE.format(kind) if kind else _FIX_MACHINE,
            locations=known_locations(location),
            rows=line_rows,
            evidence={"type": kind, "spent_ns": spent.total_ns},
            spans=spent.pairs(),
        )


def _find_half_type(ctx: Context, rows: Rows) -> str:
    """Return the half-precision type in which some operators compute; empty if it is not known."""
    # Shapes and types are recorded on request only.
    kinds = [_HALF_TYPES[kind] for kind in first_types(ctx, rows).values() if kind in _HALF_TYPES]
    return next(iter(kinds), "")
