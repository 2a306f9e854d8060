"""Sentences on a function that the steps spend Python time in: what it does, and what to do."""

import posixpath
from typing import Final

from profkit.engine.context import Context
from profkit.engine.families.loader_fixes import (
    count_cores,
    count_helpful_workers,
    suggest_lookup,
)
from profkit.engine.families.sampled_python import CHECKPOINT_CALL, SampledPlace
from profkit.engine.windows import time_with_share
from profkit.model.location import MODULE_LEVEL, Location, numbered_line
from profkit.model.work_summary import FunctionSummary
from profkit.patterns import regex

_MIN_WAITING: Final = 0.5
"""A function that waits for less of its time computes."""
_COLLECT: Final = regex(r"(^|\.)collect$|^gc\.")
_SLEEP: Final = regex(r"(^|\.)sleep$")
_RECEIVES: Final = regex(r"(^|\.)(get|recv\w*|accept|poll|select|readline)$")
"""Calls that wait until another thread, process or machine sends something."""
_TENSOR: Final = regex(
    r"(^|\.)(tensor|as_tensor|asarray|Tensor|(Float|Double|Half|Long|Int|Bool)Tensor)$"
)
_OUTPUT: Final = regex(
    r"(^|\.)(print|savefig|imsave|imshow|show|set_postfix|write|add_(scalar|histogram|image|figure|video|embedding)s?"
    r"|log|debug|info|warning|error)$"
)
_WITH_TORCH: Final = regex(r"^(torch|th)\.")
_PREPARES: Final = regex(
    r"(?i)batch|collat|augment|transform|preproc|prepar|token|encod|decod|crop|resiz|shuffl"
    r"|dataset|load_|_data|^data|__getitem__|sampl"
)
"""Names of functions that make the input of a step."""
_FIX_COLLECT: Final = (
    "Leave out the collection: Python collects by itself. If that takes long because of many "
    "objects that stay, call `gc.freeze()` once before the loop."
)
_FIX_SLEEP: Final = (
    "Leave out the sleep, or wait for the event itself in another thread, so that the next step "
    "does not wait for a timer."
)
_FIX_RECEIVE: Final = (
    "Make what `{}` waits for faster, or start it earlier; a service without requests has nothing "
    "to change."
)
FIX_LOAD: Final = "Read the file once, before the loop."
FIX_SAVE: Final = (
    "Write checkpoints less often, or with `torch.distributed.checkpoint.async_save`, which writes "
    "while training goes on."
)


def mostly_waits(place: SampledPlace | FunctionSummary) -> bool:
    """Return whether a function mostly waits: for a timer, a lock, I/O or a process."""
    return place.waiting_share >= _MIN_WAITING or bool(_SLEEP.search(place.callee))


def receives(place: SampledPlace | FunctionSummary) -> bool:
    """Return whether a call waits for what another thread, process or machine sends."""
    return mostly_waits(place) and bool(_RECEIVES.search(place.callee))


def call_text(callee: str, location: Location, quote: str = "") -> str:
    """Return ``gc.collect(), called at train.py:18 in main``; without a callee the function.

    Such as ``make_batch (train.py:10)``, or ``train.py:10`` at the top level of a file.

    Args:
        quote: What code is put in, such as a backtick.
    """
    function = "" if location.function in {None, MODULE_LEVEL} else f"{location.function}"
    file = posixpath.basename((location.file or "").replace("\\", "/"))
    line = numbered_line(file, location.line)

    if callee:
        within = f" in {function}" if function else ""
        return f"{quote}{callee}(){quote}, called at {line}{within}"
    return f"{quote}{function}{quote} ({line})" if function else line


def describe_sampled_place(ctx: Context, place: SampledPlace, spent_ns: int) -> str:
    """Return ``The program spends 612 ms per step (87%) in `f` (train.py:18).``, or waits."""
    where = call_text(place.callee, place.location, "`")
    gpu = ", while the GPU is idle" if ctx.has_device_work else ""
    verb, time = "waits" if mostly_waits(place) else "spends", time_with_share(ctx, spent_ns)
    return f"The program {verb} {time} in {where}{gpu}."


def suggest_sampled_fix(ctx: Context, place: SampledPlace) -> str:
    """Return what to do about a function, by what it does."""
    if fix := _suggest_for_call(place):
        return fix
    if not place.library and (lookup := suggest_lookup(place.callee)):
        return f"{lookup[:1].upper()}{lookup[1:]}."
    if receives(place):
        return _FIX_RECEIVE.format(place.callee)
    if mostly_waits(place):
        return (
            f"Start {_name(place)} in a thread or process ahead of the step that needs its result, "
            "so that the step does not wait for it."
        )
    return suggest_elsewhere(ctx, place.location.function or "", place.callee)


def suggest_elsewhere(ctx: Context, function: str, callee: str) -> str:
    """Return where else the work of a function can be done, or how it takes less.

    Args:
        function: The function of the program.
        callee: What it calls for most of its time, or empty.
    """
    name = callee or function
    name = "this" if name in {"", MODULE_LEVEL} else f"`{name}`"
    if not (_PREPARES.search(function) or _PREPARES.search(callee)):
        tensors = "tensors on the GPU" if ctx.has_device_work else "whole arrays or tensors"
        return (
            f"Call {name} less often, or once before the loop if its result stays the same, or "
            f"compute it with {tensors}."
        )

    if count_cores(ctx) == 1:
        return (
            f"Compute {name} with whole arrays instead of one element at a time, or once before "
            "the loop if the data stay the same: workers would share the program's one core."
        )
    has_loader, n_workers = len(ctx.data_waits) > 0, count_helpful_workers(ctx)
    where = "in the data set" if has_loader else "in a data set"
    return (
        f"Do the work of {name} {where}, with `DataLoader(..., num_workers={n_workers})`, or "
        "compute it with whole arrays instead of one element at a time."
    )


def _suggest_for_call(place: SampledPlace) -> str:
    """Return what to do about a call whose purpose its name tells; empty for any other."""
    callee, is_librarys = place.callee, bool(place.library)
    if _COLLECT.search(callee) and not is_librarys:
        return _FIX_COLLECT
    if _SLEEP.search(callee):
        return _FIX_SLEEP
    if CHECKPOINT_CALL.search(callee) and is_librarys:
        return FIX_LOAD if "load" in callee.rpartition(".")[2] else FIX_SAVE
    if _OUTPUT.search(callee):
        return "Print, plot and log every 100 steps."

    if _TENSOR.search(callee) and not is_librarys and not mostly_waits(place):
        torch = callee.rpartition(".")[0] or "torch"
        torch = torch if _WITH_TORCH.match(callee) else "torch"
        return (
            "Make one array of the list first: of arrays "
            f"`{torch}.from_numpy(np.stack(arrays))`, of tensors `{torch}.stack(tensors)`."
        )
    return ""


def _name(place: SampledPlace) -> str:
    """Return the function to change; at the top level of a file the line."""
    name = place.callee or place.location.function or ""
    return "this" if name in {"", MODULE_LEVEL} else f"`{name}`"
