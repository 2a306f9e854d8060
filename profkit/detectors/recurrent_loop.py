"""KER021 recurrent-loop: a loop over time steps runs the operators of an LSTM, GRU or RNN.

What it finds:
    The same operators in the same order many times in a row, with the gates of an LSTM (three
    sigmoids and two tanhs), of a GRU (two and one) or of a simple recurrent network (one tanh), and
    nothing else that needs the state; and calls of ``nn.LSTMCell`` and its like in such a loop.

Why it matters:
    Each operator is called once for each time step, takes some microseconds whatever its size, and
    has one or two more in the backward pass. ``nn.LSTM`` runs all time steps in one call. The cost
    is an estimate: what the operators take beyond computing, of which the call keeps a share that
    was measured. With large products nothing is to be saved, and nothing reported.

How to fix it:
    ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` with all time steps as input. A cell that differs from
    these: compute the products with the input for all time steps at once before the loop, and
    compile the rest by ``torch.compile``.

Example:
    ::

        for t in range(x.shape[1]):
            gates = self.of_input(x[:, t]) + self.of_state(h)
            i, f, g, o = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()

Use instead:
    ::

        self.lstm = nn.LSTM(n_inputs, n_hidden, batch_first=True)
        outputs, (h, c) = self.lstm(x)

Reads:
    Operators in their order (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), links between
    forward and backward pass, the device work that they launch, the steps, the source lines.

When to ignore this:
    The cell only resembles one of these, or the input of a time step depends on the output before.

Source:
    ``torch.nn.LSTM``, ``torch.nn.GRU``, ``torch.nn.RNN`` in PyTorch's documentation.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.operator_loops import (
    LoopBuilder,
    OperatorLoop,
    find_recurrent_layer,
    list_called_operators,
    list_spans,
    replace_by_one_call,
)
from profkit.engine.families.sampled_python import locate_by_samples
from profkit.index.host.repeats import find_repeats
from profkit.index.runtime_calls import names_matching
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    format_count,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER021",
    name="recurrent-loop",
    title="A loop runs a recurrent cell operator by operator",
    severity="warning",
    needs=(needs.STEPS, needs.OPERATORS),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a loop over time steps is a finding.

    Attributes:
        min_time_steps_count: Minimum time steps in a row: a few layers or heads are no sequence.
        min_saved_share: Minimum share of the steps that the fix saves, which changes the model's
            weights by name.
        warning_share: Share from which it is a warning.
    """

    min_time_steps_count: int = 16
    min_saved_share: float = 0.1
    warning_share: float = 0.2


_MAX_OPERATORS: Final = 80
"""The most operators of a time step, as of three layers of LSTMs."""
_GATES: Final = regex(r"^aten::(tanh|lstm_cell|gru_cell|rnn_tanh_cell|rnn_relu_cell)_?$")
_KEPT: Final = {"LSTM": 0.1, "GRU": 0.55, "RNN": 0.55}
"""Share of the time beside computing that torch's own layer takes. Measured with torch 2.13 on one
core for 8 to 64 rows of 16 to 128 units: LSTM 0.05, GRU 0.55, RNN 0.5 to 0.55."""
_KEPT_KERNELS: Final = 0.3
"""Assumed share of the time of kernels that those of cuDNN take for all time steps."""


@dataclass(frozen=True)
class _Loop:
    """A loop over time steps in a step of the program.

    Attributes:
        layer: ``LSTM``, ``GRU`` or ``RNN``.
        n_time_steps: How often it repeats its operators.
        operators: Its operators.
    """

    layer: str
    n_time_steps: int
    operators: OperatorLoop


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function that runs a recurrent cell in a loop."""
    loops: dict[tuple[str, str | None, str | None], list[_Loop]] = {}
    for loop in _find_loops(ctx, thresholds.min_time_steps_count):
        location = ctx.location(int(loop.operators.rows[0]))
        loops.setdefault((loop.layer, location.file, location.function), []).append(loop)
    for of_function in loops.values():
        yield from _build_finding(ctx, thresholds, of_function)


def _build_finding(ctx: Context, thresholds: Thresholds, loops: list[_Loop]) -> Iterator[Finding]:
    """Yield the finding on the loops of one function, if one call for all saves enough."""
    layer = loops[0].layer
    operators = [loop.operators for loop in loops]
    change = replace_by_one_call(ctx, operators, _KEPT[layer], _KEPT_KERNELS)
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    n_times = max(loop.n_time_steps for loop in loops)
    spans = list_spans(ctx, operators)
    spent_ns = sum(end - start for start, end in spans)
    forward = np.sort(np.concatenate([loop.rows for loop in operators]))
    locations = locate_by_samples(ctx, spent_ns // 2) or find_costliest_lines(ctx, forward)
    n_ops = format_count(len(forward) // max(1, len(ctx.steps)))
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The loop{at_first(locations)} runs the operators of {_ARTICLES[layer]} for one time "
            f"step after the other: {n_ops} operators per step of the program, in up to "
            f"{format_count(n_times)} time steps. With their backward pass they take "
            f"{time_with_share(ctx, spent_ns)}."
        ),
        fix=(
            f"Use `nn.{layer}`, which runs all time steps in one call. If the cell differs from "
            "it, compute the products with the input for all time steps before the loop, and "
            "compile the loop by `torch.compile`."
        ),
        locations=locations,
        rows=forward,
        n=len(loops),
        evidence={"cell": layer, "time_steps": n_times, "spent_ns": spent_ns},
        spans=spans,
    )


_ARTICLES: Final = {
    "LSTM": "an LSTM",
    "GRU": "a GRU",
    "RNN": "a simple recurrent network",
}


def _find_loops(ctx: Context, min_times: int) -> Iterator[_Loop]:
    """Yield the loops over time steps that run a recurrent cell."""
    events = ctx.events
    is_gate = names_matching(events, _GATES)
    if np.count_nonzero(is_gate[events.name]) < min_times:
        return

    builder = LoopBuilder(ctx)
    for rows in list_called_operators(ctx):
        for repeat in find_repeats(events.name[rows], min_times, _MAX_OPERATORS):
            body = events.name[rows[repeat.start : repeat.start + repeat.period]]
            layer = find_recurrent_layer([events.names[name] for name in body.tolist()])
            if layer:
                of_loop = rows[repeat.start : repeat.end]
                yield _Loop(layer, repeat.n, builder.build(of_loop))
