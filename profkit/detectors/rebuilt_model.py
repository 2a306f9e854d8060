"""CPU004 rebuilt-model: a model or layer is built anew for each input.

What it finds:
    Programs that initialize the weights of a model again and again, with the model's products in
    between: a function that answers a request builds the model, loads its weights, uses it once
    and forgets it; or a ``forward`` that creates one of its layers.

Why it matters:
    To build a model writes random numbers to all of its weights, which the file then overwrites.
    With reading the file that takes many times as long as the use of a small model. A layer that
    ``forward`` creates is besides never trained: no optimizer knows its weights, which are others
    at the next call.

How to fix it:
    Build and load the model once, before the loop or when the service starts; create a layer in
    ``__init__``.

Example:
    ::

        def predict(x):
            model = Net()
            model.load_state_dict(torch.load("net.pt"))
            return model(x)

Use instead:
    ::

        model = Net()
        model.load_state_dict(torch.load("net.pt"))

        def predict(x):
            return model(x)

Reads:
    Operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), their shapes for a single layer,
    source lines; without those the functions that were sampled over a run.

When to ignore this:
    Each of the models is trained, such as in a search for hyperparameters.

Source:
    ``torch.nn.Linear.reset_parameters`` and ``torch.nn.Module.load_state_dict`` in PyTorch's
    documentation; ``torch.nn.utils.skip_init`` for a model that is built without random numbers.
"""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.sampled_python import find_sampled_build
from profkit.index.compute.shaped import by_shapes, tensor_shape
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Location,
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
    time_with_share,
)

INFO = RuleInfo(
    id="CPU004",
    name="rebuilt-model",
    title="A model or layer is built anew for each input",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When models that are built are a finding.

    Attributes:
        min_builds_count: Minimum models: two are a teacher and a student, or two trials.
        min_weights_count: Minimum weights of a model that are initialized in a row, such as two
            layers with biases: noise takes fewer random tensors.
        min_saved_share: Minimum share of the time that their initialization takes.
    """

    min_builds_count: int = 3
    min_weights_count: int = 4
    min_saved_share: float = 0.05


_INITIALIZES: Final = regex(r"^aten::(uniform|normal)_$")
_COMPUTES: Final = regex(
    r"^aten::(linear|matmul|mm|addmm|bmm|conv\w*|_?convolution|lstm|gru|rnn_\w+|embedding)$"
)
_BUILD_ONCE: Final = (
    "Build the model and load its weights once, before the loop or when the service starts, and "
    "call it for each input."
)
_CREATE_LAYER: Final = (
    "Create the layer once, in the `__init__` of the module that calls it: there the optimizer "
    "finds its weights, which otherwise start anew at each call and are never trained."
)
_LOADS: Final = 2
"""A function that builds a model may take as long for more than its weights."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if models are built again and again."""
    models = _find_models(ctx)
    builds = [model for model in models if len(model) >= thresholds.min_weights_count]
    is_layer = not builds
    if is_layer:
        builds = [layer for model in models if len(layer := _find_layers(ctx, model))]
    if not builds:
        return

    rows = np.concatenate(builds)
    spans = tuple((int(ctx.events.ts_ns[b[0]]), int(ctx.events.end_ns[b[-1]])) for b in builds)
    sampled, sampled_ns = find_sampled_build(ctx)
    n_builds = len(builds)
    # Of a run without steps a tenth of a second may be recorded, which samples go beyond.
    longest_ns = max(end - start for start, end in spans)
    n_builds = max(n_builds, sampled_ns // (_LOADS * longest_ns))
    if n_builds < thresholds.min_builds_count:
        return

    saving = measure_saving(ctx, ProgramChange(host_time=spans), "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    location = _find_place(ctx, rows, sampled)
    in_run = "at least " if n_builds > len(builds) else ""
    place = at(location) if location else ""
    what = "layer" if is_layer else "model"
    spent_ns = sum(end - start for start, end in spans)
    yield saving.finding(
        INFO,
        confidence="medium",
        message=(
            f"The program builds a {what}{place} {in_run}{n_builds} times, and uses it in between. "
            f"To initialize its weights alone takes {time_with_share(ctx, spent_ns)}."
        ),
        fix=_CREATE_LAYER if is_layer else _BUILD_ONCE,
        locations=known_locations(location) if location else (),
        rows=rows,
        n=n_builds,
        evidence={"n_weights": len(rows), "spent_ns": spent_ns},
        spans=spans,
    )


def _find_models(ctx: Context) -> list[Rows]:
    """Find the weights that are initialized in a row, as rows in the order of time.

    A model's are those in a row on one thread, with no product in between. Operators that fill new
    tensors, such as ``randn``, call the same operators within them, and are left out.
    """
    is_op = ctx.events.category == Category.OP
    is_outermost = ctx.tree.enclosing(is_op) == NO_ROW
    weights = find_rows(ctx, _INITIALIZES, Category.OP)
    weights = weights[is_outermost[weights]]
    if not len(weights):
        return []

    events = ctx.events
    lane = np.bincount(events.lane[weights]).argmax()
    weights = weights[events.lane[weights] == lane]
    weights = weights[np.argsort(events.ts_ns[weights], kind="stable")]
    products = find_rows(ctx, _COMPUTES, Category.OP)
    product_ns = np.sort(events.ts_ns[products[events.lane[products] == lane]])

    # As many products as have been computed before, so many models may have been used.
    n_before = np.searchsorted(product_ns, events.ts_ns[weights])
    return np.split(weights, np.flatnonzero(np.diff(n_before)) + 1)


def _find_layers(ctx: Context, weights: Rows) -> Rows:
    """Find weights whose shape and that of what follows are those of a layer and its bias."""
    shape_of = {
        row: tensor_shape(inputs, 0)
        for inputs, rows in by_shapes(ctx.events, weights)
        for row in rows.tolist()
    }
    shapes = [shape_of.get(row, ()) for row in weights.tolist()]
    is_weight = [
        len(weight) > 1 and bias == weight[:1] for weight, bias in itertools.pairwise(shapes)
    ]
    first = np.flatnonzero(is_weight)
    return weights[np.sort(np.concatenate((first, first + 1)))]


def _find_place(ctx: Context, rows: Rows, sampled: Location | None) -> Location | None:
    """Find where models are built: by source lines, or else by samples."""
    longest = max(ctx.by_line(rows), key=lambda line: int(ctx.events.dur_ns[line[1]].sum()))
    return longest[0] if longest[0].file else sampled
