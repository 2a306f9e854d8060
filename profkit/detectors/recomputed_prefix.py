"""KER020 recomputed-prefix: each call of a model computes again what earlier calls have computed.

What it finds:
    Matrix products and recurrent layers without a backward pass whose input grows by the same
    number of rows from call to call, where the program appends what it predicted: decoding
    without a cache of keys and values, or without the state of a recurrent network. The rows are
    appended by ``torch.cat``, or chosen among as many tokens as the embedding of the input has.

Why it matters:
    With a cache, a call computes the last position alone. Without one, the time of a sequence of n
    tokens grows with the square of n. The cost is a replay in which operators on the growing input
    take the share of their time that the new rows have, or what a call of them takes at least: an
    estimate. It is for the recorded steps. Later ones have a longer input, and cost more.

How to fix it:
    Keep the keys and values of all earlier positions, and pass the new one alone. Transformers has
    ``use_cache=True`` and ``past_key_values``; a model of your own has tensors of a fixed size, of
    which each call writes one position. Of a recurrent network, keep the state that it returns.

Example:
    ::

        for _ in range(n_tokens):
            logits = model(ids)[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)

Use instead:
    ::

        new = ids
        for _ in range(n_tokens):
            logits, cache = model(new, cache)
            new = logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], dim=1)

Reads:
    Operators with their shapes (``Input Dims``, ``Input type``, ``ts_ns`` and ``dur_ns`` in
    nanoseconds), their kernels, links between forward and backward pass, the steps, the source
    lines, the samples of monitored memory (``step``, ``ts_ns`` and ``own_ns`` in nanoseconds).

When to ignore this:
    Each new position changes what all earlier ones see, as without a causal mask, or with positions
    that are counted from the end.

Source:
    "Caching" in the documentation of Transformers; "Efficiently Scaling Transformer Inference",
    Pope et al., 2022 (section 2.1).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.sampled_python import locate_by_samples
from profkit.index.compute.inputs import OpInputs, Shape, n_elements
from profkit.index.compute.shaped import by_shapes, list_shapes, tensor_shape
from profkit.index.device.syncs import outermost_calls
from profkit.index.distinct import are_among, distinct
from profkit.index.intervals import covered_by
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Float64s,
    Int64s,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    find_rows,
    format_count,
    format_ns,
    in_windows,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER020",
    name="recomputed-prefix",
    title="Each call computes its growing input again",
    severity="warning",
    needs=(needs.SHAPES,),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a growing input is a finding.

    Attributes:
        min_sizes_count: Minimum sizes of the input that follow each other at the same distance:
            two say nothing, and three recorded steps have three.
        min_saved_share: Minimum share of the recorded steps that the fix saves, which changes the
            model's code.
        warning_share: Share from which it is a warning.
    """

    min_sizes_count: int = 3
    min_saved_share: float = 0.05
    warning_share: float = 0.1


_RECURRENT: Final = regex(r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$")
_PRODUCT: Final = regex(rf"^aten::(linear|mm|addmm|_addmm_activation)$|{_RECURRENT.pattern}")
_WITH_BIAS: Final = regex(r"addmm")
_APPENDS: Final = regex(r"^aten::cat$")
_CHOOSES: Final = regex(r"^aten::(_?softmax|argmax|multinomial|topk|max|sort|argsort)$")
_EMBEDS: Final = regex(r"^aten::embedding$")

_MIN_GROWING_SHARE: Final = 0.8
"""Share of the products with one factor that have to grow: others may begin a sequence."""
_CALL_NS: Final = 8_000
"""What an operator on one row takes at least on a CPU. Measured for layers of Transformers with 192
to 768 columns on one core: 5 to 15 µs each, apart from reading the weights."""
_KERNEL_NS: Final = 2_000
"""What a kernel takes at least."""
_CPU_BYTES_PER_NS: Final = 12
"""How fast a core reads weights."""
_GPU_BYTES_PER_NS: Final = 1_500
"""How fast a GPU reads weights."""
_ELEMENT_BYTES: Final = 4
_MAX_LOCATIONS: Final = 3
_MAX_LENGTHS: Final = 4
_LONGER: Final = 1.25
"""Ratio of the run's mean step to the recorded ones from which it is said."""


@dataclass(frozen=True)
class _Growth:
    """Products with one factor, of which the other one grows from call to call.

    Attributes:
        rows: The products, by time.
        sizes: The number of rows of the growing factor. Shape of ``rows``.
        added: By how many rows it grows.
    """

    rows: Rows
    sizes: Int64s
    added: int


@dataclass(frozen=True)
class _RepeatedWork:
    """Operators on a growing input.

    Attributes:
        rows: Shape ``(k,)``.
        new_share: The share of the input that is new. Shape ``(k,)``.
        fixed_bytes: Bytes of the other inputs. Shape ``(k,)``.
    """

    rows: Rows
    new_share: Float64s
    fixed_bytes: Float64s


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if calls of a model compute a growing input again."""
    growths = list(_find_growths(ctx, thresholds.min_sizes_count))
    appending = _find_appending(ctx, growths)
    if not len(appending):
        return

    repeated = _find_repeated_work(ctx, growths)
    saving = measure_saving(ctx, _leave_new_rows(ctx, repeated), "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    products = np.sort(np.concatenate([growth.rows for growth in growths]))
    lengths = distinct(np.concatenate([growth.sizes // growth.added for growth in growths]))
    spent = covered_by(ctx.events, repeated.rows)
    loop = find_costliest_lines(ctx, appending)
    sampled = locate_by_samples(ctx, spent.total_ns)
    locations = dict.fromkeys((*sampled, *loop[:1], *find_costliest_lines(ctx, products)))
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The loop{at_first(loop)} appends to the input of a model, which computes all of it "
            f"again in each call: {_describe_lengths(lengths)}. Operators on it take "
            f"{time_with_share(ctx, spent.total_ns)}{_describe_run(ctx)}."
        ),
        fix=_suggest_fix(ctx, products),
        locations=known_locations(*locations)[:_MAX_LOCATIONS],
        rows=products,
        n=len(lengths),
        evidence={
            "first_length": int(lengths[0]),
            "last_length": int(lengths[-1]),
            "spent_ns": spent.total_ns,
        },
        spans=spent.pairs(),
    )


def _find_growths(ctx: Context, min_sizes: int) -> Iterator[_Growth]:
    """Yield the products of each line and factor of which the other factor grows."""
    rows = outermost_calls(ctx.events, ctx.tree, find_rows(ctx, _PRODUCT, Category.OP))
    # Training on longer and longer inputs has a backward pass.
    outermost = ctx.tree.outermost_op
    of_backward = outermost[ctx.forward_ops[ctx.forward_ops != NO_ROW]]
    rows = rows[~are_among(outermost[rows], of_backward)]

    size_of = np.zeros(len(ctx.events), dtype=np.int64)
    groups: dict[tuple[Shape, int, int], list[Rows]] = {}
    for inputs, of_shapes in by_shapes(ctx.events, rows):
        has_bias = bool(_WITH_BIAS.search(ctx.events.name_of(int(of_shapes[0]))))
        growing, factor = (tensor_shape(inputs, int(has_bias) + i) for i in (0, 1))
        if not growing:
            continue
        size_of[of_shapes] = n_elements(growing[:-1])
        # The second input of a recurrent layer is a list, its state.
        for frame in distinct(ctx.source.frame[of_shapes]).tolist():
            key = (factor, growing[-1], frame)
            groups.setdefault(key, []).append(of_shapes[ctx.source.frame[of_shapes] == frame])

    for parts in groups.values():
        group = ctx.events.sort_by_start(np.concatenate(parts))
        sizes = size_of[group]
        runs = tuple(_find_runs(sizes, min_sizes))
        if sum(end - start for start, end, _ in runs) >= _MIN_GROWING_SHARE * len(group):
            for start, end, added in runs:
                yield _Growth(group[start:end], sizes[start:end], added)


def _find_runs(sizes: Int64s, min_sizes: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and growth of calls whose size grows by the same number each time."""
    # All layers of a model have the size of its call.
    first = np.flatnonzero(np.diff(sizes, prepend=-1))
    growth = np.diff(sizes[first])
    edges = np.append(first, len(sizes)).tolist()

    begin = 0
    for end in np.flatnonzero(np.diff(growth, append=0) != 0).tolist():
        if growth[begin] > 0 and end - begin + 2 >= min_sizes:
            yield edges[begin], edges[end + 2], int(growth[begin])
        begin = end + 1


def _find_appending(ctx: Context, growths: list[_Growth]) -> Rows:
    """Find the operators that append to the input, or else choose what is appended."""
    sizes = {(size, growth.added) for growth in growths for size in distinct(growth.sizes).tolist()}
    if not sizes:
        return _join([])

    cats = by_shapes(ctx.events, find_rows(ctx, _APPENDS, Category.OP))
    appending = [rows for inputs, rows in cats if _is_appending(list_shapes(inputs, 0), sizes)]
    if appending:
        return _join(appending)

    # A list of tokens, or a buffer of which each call takes more, grows without an operator.
    embedded = by_shapes(ctx.events, find_rows(ctx, _EMBEDS, Category.OP))
    n_indices = {size for size, _ in sizes}
    vocabularies = {
        tensor_shape(inputs, 0)[:1]
        for inputs, _ in embedded
        if n_elements(tensor_shape(inputs, 1)) in n_indices
    }
    most = max(added for _, added in sizes)
    choices = by_shapes(ctx.events, find_rows(ctx, _CHOOSES, Category.OP))
    return _join([rows for inputs, rows in choices if _is_choice(inputs, vocabularies, most)])


def _is_appending(shapes: tuple[Shape, ...], sizes: set[tuple[int, int]]) -> bool:
    """Return whether tensors of some shapes become one by appending as much as a call is longer."""
    if len(shapes) != 2 or len(shapes[0]) != len(shapes[1]):  # noqa: PLR2004  (before, and new)
        return False
    n_differing = sum(a != b for a, b in zip(*shapes, strict=True))
    before, new = map(n_elements, shapes)
    return n_differing == 1 and any(new * size == before * added for size, added in sizes)


def _is_choice(inputs: OpInputs, vocabularies: set[Shape], most: int) -> bool:
    """Return whether an operator chooses one of the tokens that the input has, at one position."""
    scores = tensor_shape(inputs, 0)
    return scores[-1:] in vocabularies and n_elements(scores[:-1]) <= most


def _join(parts: list[Rows]) -> Rows:
    return np.sort(np.concatenate([np.zeros(0, dtype=np.intp), *parts])).astype(np.intp)


@dataclass(frozen=True)
class _Call:
    """A call of a model whose input grows.

    Attributes:
        begin_ns: The end of the products of the call before.
        end_ns: The begin of the products of the call after it.
        sizes: The rows of a product, and the positions of a sequence: one of them is a dimension of
            each tensor that grows.
        new_share: The share of the positions that are new.
    """

    begin_ns: int
    end_ns: int
    sizes: tuple[int, int]
    new_share: float


def _find_calls(ctx: Context, growths: list[_Growth]) -> Iterator[_Call]:
    """Yield the calls of models whose input grows."""
    events = ctx.events
    # The layers of one model grow alike, and each of them tells where its calls begin and end.
    longest = {tuple(distinct(growth.sizes).tolist()): growth for growth in growths}
    for sizes, growth in longest.items():
        first = np.searchsorted(growth.sizes, sizes)
        starts_ns = events.ts_ns[growth.rows[first]].tolist()
        ends_ns = events.end_ns[growth.rows[np.append(first[1:], len(growth.rows)) - 1]].tolist()

        # Before the first product of a call is its embedding, after the last one its choice.
        begins_ns = [2 * starts_ns[0] - starts_ns[1], *ends_ns[:-1]]
        stops_ns = [*starts_ns[1:], 2 * ends_ns[-1] - ends_ns[-2]]
        for size, begin_ns, stop_ns in zip(sizes, begins_ns, stops_ns, strict=True):
            positions = size // growth.added
            yield _Call(begin_ns, stop_ns, (size, positions), growth.added / size)


def _find_repeated_work(ctx: Context, growths: list[_Growth]) -> _RepeatedWork:
    """Find the outermost operators of the calls that have a growing input."""
    events = ctx.events
    top = np.flatnonzero(ctx.tree.is_op & (ctx.tree.op_around == NO_ROW))
    top = top[in_windows(ctx, top)]
    calls_by_size: dict[int, list[_Call]] = {}
    for call in _find_calls(ctx, growths):
        for size in call.sizes:
            calls_by_size.setdefault(size, []).append(call)

    new_share, fixed_bytes = np.zeros(len(events)), np.zeros(len(events))
    for inputs, rows in by_shapes(events, top):
        shapes = [tensor_shape(inputs, place) for place in range(len(inputs.shapes))]
        for size in {size for shape in shapes for size in shape if size in calls_by_size}:
            for call in calls_by_size[size]:
                ts_ns = events.ts_ns[rows]
                of_call = rows[(ts_ns >= call.begin_ns) & (ts_ns < call.end_ns)]
                fixed = [shape for shape in shapes if shape and size not in shape]
                new_share[of_call] = call.new_share
                fixed_bytes[of_call] = _ELEMENT_BYTES * sum(map(n_elements, fixed))

    rows = np.flatnonzero(new_share)
    return _RepeatedWork(rows, new_share[rows], fixed_bytes[rows])


def _leave_new_rows(ctx: Context, repeated: _RepeatedWork) -> ProgramChange:
    """Return the change that leaves the operators the time of their new rows."""
    events = ctx.events
    place = np.zeros(len(events), dtype=np.intp)
    place[repeated.rows] = np.arange(len(repeated.rows))
    work, launching = ctx.launched_by(repeated.rows)
    on_cpu = repeated.rows[~are_among(repeated.rows, launching)]

    # A CPU computes in the operators themselves, a device in the kernels that they launch.
    scaled: list[tuple[Rows, float]] = []
    for rows, owners, call_ns, bytes_per_ns in (
        (on_cpu, on_cpu, _CALL_NS, _CPU_BYTES_PER_NS),
        (work, launching, _KERNEL_NS, _GPU_BYTES_PER_NS),
    ):
        spent_ns = events.dur_ns[rows]
        least_ns = call_ns + repeated.fixed_bytes[place[owners]] / bytes_per_ns
        kept_ns = np.maximum(repeated.new_share[place[owners]] * spent_ns, least_ns)
        kept_ns = np.minimum(kept_ns, spent_ns)

        # One share for each kind of operator: a replay takes longer with more of them.
        names = events.name[owners]
        for name in distinct(names).tolist():
            is_kind = names == name
            share = kept_ns[is_kind].sum() / max(1, spent_ns[is_kind].sum())
            scaled.append((rows[is_kind].astype(np.intp), float(share)))
    return ProgramChange(scaled=tuple(scaled))


def _describe_lengths(lengths: Int64s) -> str:
    """Return ``29, 30, 31 positions``; of many ``from 29 to 128 positions``."""
    if len(lengths) <= _MAX_LENGTHS:
        return f"{', '.join(map(format_count, lengths.tolist()))} positions"
    return f"from {format_count(int(lengths[0]))} to {format_count(int(lengths[-1]))} positions"


def _describe_run(ctx: Context) -> str:
    """Return how long the steps of the whole run take; empty if that is not much longer."""
    live = ctx.live
    if live is None or len(live.samples) < 2 or not len(ctx.steps):  # noqa: PLR2004
        return ""
    first, last = live.samples[0], live.samples[-1]
    spent_ns = last.ts_ns - last.own_ns - first.ts_ns + first.own_ns
    step_ns = spent_ns / max(1, last.step - first.step)
    if step_ns < _LONGER * ctx.steps.total_ns / len(ctx.steps):
        return ""
    return f", and more in longer calls: a step of the whole run takes {format_ns(step_ns)}"


def _suggest_fix(ctx: Context, products: Rows) -> str:
    names = {ctx.events.name_of(row) for row in products.tolist()}
    if any(_RECURRENT.search(name) for name in names):
        return "Keep the state that the network returns, and pass it with the new position alone."
    return (
        "Keep the keys and values of earlier positions, and pass the new position alone: "
        "`use_cache=True` and `past_key_values` in Transformers, in a model of your own tensors of "
        "a fixed size to which each call adds one position."
    )
