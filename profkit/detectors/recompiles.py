"""CMP001 recompiles: functions are recompiled in the middle of the steps.

What it finds:
    Functions of ``torch.compile`` that are compiled in a step although they were compiled before,
    with PyTorch's reason; and functions that PyTorch stopped compiling after too many
    recompilations. The first compilation is not reported, nor is a second one soon after it, in
    which PyTorch learns that a size varies.

Why it matters:
    Compiled code is valid for calls like the one that it was compiled for: the same sizes, types
    and values. A call that fails a guard compiles the function again, which blocks the step for a
    tenth of a second to minutes. The cost is what the steps take less in a replay of the recording
    without these compilations. Compiling takes about a sixth longer while input shapes are
    recorded, and the cost contains that. After eight versions PyTorch stops: calls that match none
    of them run uncompiled from then on, without an error.

How to fix it:
    Make calls alike, or declare what varies: ``torch.compile(..., dynamic=True)``,
    ``torch._dynamo.mark_dynamic``, padding to a few lengths, tensors instead of changing numbers.
    The failed guard says which.

Example:
    ::

        step = torch.compile(model, dynamic=False)
        for x in batches_of_any_length:
            loss = step(x).mean()

Use instead:
    ::

        step = torch.compile(model, dynamic=True)
        for x in batches_of_any_length:
            loss = step(x).mean()

Reads:
    Compilations on the host (``ts_ns`` and ``dur_ns`` in nanoseconds) and the calls of compiled
    functions, the steps, GPU idle time in nanoseconds, and PyTorch's records of compilations, which
    profkit writes into its traces. Without them, and before torch 2.5, a function counts as
    recompiled if its line compiles in several steps.

When to ignore this:
    The program will soon have seen all sizes: three steps do not tell what happens in the
    thousandth. PyTorch keeps records of 64 compilations; the reasons of earlier ones are not known.

Source:
    "Recompilation" and "Dynamic shapes" in PyTorch's documentation on ``torch.compile``;
    ``torch/_dynamo/convert_frame.py`` and ``torch/_dynamo/cache_size.py`` (``recompile_limit``);
    ``torch/_dynamo/utils.py`` (``dynamo_timed``, ``CompilationMetrics``);
    ``torch/_dynamo/guards.py`` and ``torch/csrc/dynamo/guards.cpp`` (the texts of guards).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.compile import (
    Compilation,
    CompiledCode,
    find_recompilations,
    first_line,
    function_id,
    group_backward_rows,
    is_limit,
    is_resumed,
    location_of,
    matching_fix,
    original,
    version_of,
)
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_by, covered_within, intersect
from profkit.rule import (
    CodePlace,
    Compiled,
    Confidence,
    Context,
    Finding,
    Location,
    ProgramChange,
    RuleInfo,
    at,
    counted,
    dataclass,
    idle_in_windows,
    known_locations,
    measure_saving,
    needs,
    reaches_share,
    regex,
    time_with_share,
    times_per_step,
    windows,
)

INFO = RuleInfo(
    id="CMP001",
    name="recompiles",
    title="Recompilation of compiled functions",
    severity="warning",
    needs=(needs.OPERATORS, needs.STEPS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When recompilations are more than a note.

    Attributes:
        warning_share: Share of the steps that compiling takes from which it is a warning: from one
            percent on, a change is worth the edit.
        min_versions_count: Minimum versions of a function that is recompiled in one step only:
            PyTorch compiles a second one by itself, to learn what varies.
    """

    warning_share: float = 0.01
    min_versions_count: int = 3


MAX_REASONS: Final = 3
_DIGITS: Final = regex(r"\d+")
"""Reasons that differ only in sizes and values are the same."""
_SIZE: Final = regex(
    r"tensor '(?P<what>[^']+)' size mismatch at index (?P<at>\d+)\. "
    r"expected (?P<before>\d+), actual (?P<now>\d+)"
)

_FIXES: Final = {
    # The first pattern in a guard decides, so the general ones come last.
    r"size mismatch|rank mismatch|size\(\)|\.size\b|\bs\d+\b|mark_dynamic": (
        "Use `torch.compile(..., dynamic=True)`, or call "
        "`torch._dynamo.mark_dynamic(tensor, dim)` before the function, or pad to a few sizes."
    ),
    r"stride mismatch|storage_offset": (
        "Pass tensors with the same strides: call `.contiguous()` before the function."
    ),
    r"requires_grad mismatch": (
        "Pass tensors that all require gradients or all do not: `.detach()` the others, or "
        "compile a function for each use."
    ),
    r"dtype mismatch|dispatch key set mismatch": (
        "Pass tensors of the same dtype under the same `autocast`, `no_grad` and "
        "`inference_mode`, or compile a function for each use."
    ),
    r"GLOBAL_STATE|check_global_state|grad_mode|autocast|\.training\b": (
        "Compile a function for each use, such as one for training and one for evaluation: "
        "`no_grad`, `autocast` or `train()` differ between calls."
    ),
    r"BACKEND_MATCH": "Call `torch.compile` once before the loop, and reuse its result.",
    r"check_obj_id|check_type_id|deallocated|invalidated| is not? |WEAKREF|hooks": (
        "Create the objects that the function uses once before the loop, and reuse them."
    ),
    r"^len\(|keys\(\)|dict_contains|length mismatch": (
        "Pass lists and dictionaries of the same length in every call, or one tensor instead."
    ),
    r"== ['\"]": (
        "Look up what depends on the text before the function is called, and pass that; or set "
        "`torch._dynamo.config.recompile_limit` above the number of different texts."
    ),
    r"==": (
        "Pass a Python number that changes as a tensor, `torch.tensor(value)`; keep other "
        "changing values out of the compiled function."
    ),
}
"""Fixes by a pattern in the failed guard."""
_DEFAULT_FIX: Final = "Pass arguments that meet the same guards in every call."
_UNKNOWN_REASON_FIX: Final = (
    "Record with `profkit run` or `profkit.trace`, or set `TORCH_LOGS=recompiles`, to see the "
    "failed guard; where sizes differ, use `torch.compile(..., dynamic=True)`."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that recompiles, and for each function given up on."""
    code = CompiledCode(ctx)
    groups = find_recompilations(ctx, code)
    for group, backward in zip(groups, group_backward_rows(ctx, groups), strict=True):
        yield _build_finding(ctx, group, backward, thresholds)
    for attempt in code.compiled:
        if is_limit(attempt.failure):
            yield from _report_limit(ctx, code, attempt)


def _build_finding(
    ctx: Context, group: list[Compilation], backward: list[int], thresholds: Thresholds
) -> Finding:
    """Build the finding for the recompilations of one line, and their backward passes."""
    rows = np.array([compilation.row for compilation in group], dtype=np.intp)
    compiling = np.array([*rows.tolist(), *backward], dtype=np.intp)
    spent = covered_by(ctx.events, compiling)
    saving = measure_saving(ctx, ProgramChange(scaled=((compiling, 0.0),)))

    # Where devices work meanwhile, nothing is lost.
    lost_time = intersect(spent, idle_in_windows(ctx)) if ctx.has_device_work else spent
    total_ns = int(covered_within(lost_time, *windows(ctx)).sum())

    records = [compilation.record for compilation in group if compilation.record is not None]
    n_by_reason = Counter(record.reason for record in records)
    reasons = [reason for reason, _ in n_by_reason.most_common() if reason]
    users = [record for record in records if record.is_users and not is_resumed(record.code[2])]
    functions = list(dict.fromkeys(record.code for record in users))

    versions = [version_of(compilation.compile_id) for compilation in group]
    # Versions are numbered from 0.
    n_versions = max((version + 1 for version in versions if version is not None), default=0)
    n_steps = len(distinct(ctx.step_of(rows)))
    is_repeated = n_steps > 1 or n_versions >= thresholds.min_versions_count
    is_long = reaches_share(ctx, total_ns, thresholds.warning_share)
    is_sure = n_steps > 1 or bool(reasons)
    confidence: Confidence = "high" if is_sure else "medium"

    return saving.finding(
        INFO,
        severity="warning" if is_repeated and is_long else "note",
        confidence=confidence if group[0].is_identified else "low",
        message=(
            f"{_name_function(functions, group[0].location)} is recompiled "
            f"{times_per_step(ctx, len(rows))}, which takes {time_with_share(ctx, total_ns)}. "
            f"{_quote_guards(reasons)}"
        ),
        fix=_suggest_fix(reasons[0] if reasons else ""),
        locations=known_locations(group[0].location, *map(location_of, functions)),
        rows=rows,
        evidence={
            "compile_ns": spent.total_ns,
            "n_steps": n_steps,
            "n_versions": n_versions,
            "reasons": [first_line(reason) for reason in reasons[:MAX_REASONS]],
        },
        spans=lost_time.pairs(),
    )


def _name_function(functions: list[CodePlace], location: Location) -> str:
    """Name the recompiled function as the user does."""
    if len(functions) == 1:
        file, line, name = functions[0]
        return f"`{name}` (called{at(location)})" if file and line else f"`{name}`"
    place = at(location)
    return f"The function called{place}" if place else "A function"


def _quote_guards(reasons: list[str]) -> str:
    if not reasons:
        return "The failed guard was not recorded."
    lines = [first_line(reason) for reason in reasons]
    n_more = len({_DIGITS.sub("0", line) for line in lines}) - 1
    more = f", and {counted(n_more, 'other guard')}" if n_more else ""
    return f"Failed guard: “{lines[0]}”{more}."


def _suggest_fix(reason: str) -> str:
    """Suggest the fix for a failed guard."""
    if not reason:
        return _UNKNOWN_REASON_FIX
    line = first_line(reason)
    fix = matching_fix(line, _FIXES) or _DEFAULT_FIX
    size = _SIZE.search(line)
    if size is None:
        return fix
    change = f"{size['before']}, then {size['now']}"
    return f"{fix} Dimension {size['at']} of `{size['what']}` changes ({change})."


def _report_limit(ctx: Context, code: CompiledCode, attempt: Compiled) -> Iterator[Finding]:
    """Yield a finding for a function that reached the limit, unless it no longer runs.

    Args:
        attempt: The compilation that torch refused.
    """
    function = code.function(attempt.number) or attempt
    is_run_in_steps = code.is_run_in_steps(function)
    if is_run_in_steps is False:
        return

    caller = function.caller or attempt.caller
    place = location_of(caller) if caller is not None else location_of(function.code)
    name = original(function.code)[2]
    subject = f"`{name}`" if function.is_users and name else "A function"

    # The refused attempt is in the records, but is not a version.
    ident = function_id(attempt.number)
    n_versions = sum(function_id(record.number) == ident for record in code.compiled) - 1

    yield INFO.finding(
        confidence="high" if is_run_in_steps else "low",
        message=(
            f"{subject}{at(place)} reached the recompile limit after {n_versions} compilations, "
            "so calls that match none of these versions run uncompiled. "
            f"{_quote_guards([attempt.reason] if attempt.reason else [])}"
        ),
        fix=_suggest_fix(attempt.reason),
        locations=known_locations(place),
        evidence={"n_versions": n_versions, "limit": first_line(attempt.failure)},
    )
