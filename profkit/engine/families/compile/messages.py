"""What torch says of compiling, cut to a line, and what to do about it.

Source: ``torch/_dynamo/guards.py`` and ``torch/csrc/dynamo/guards.cpp`` (the guards that do not
hold), ``torch/_dynamo/graph_break_registry.json`` (why graphs end); "Dealing with recompilations"
and "Working with graph breaks" in PyTorch's documentation on ``torch.compile``.
"""

import re
from typing import Final

_LONGEST: Final = 160
_VERSION: Final = re.compile(r"^\S*\d+/\d+: ")
_COMMENT: Final = re.compile(r" {2,}# .*$")
_HINT: Final = re.compile(r"^\s*Hint: (?P<hint>(?:.|\n)*?)(?=\n\s*Hint: |\n\n|\Z)", re.MULTILINE)
_NO_HELP: Final = re.compile(r"report an issue|Dynamo bug|fundamental|graph break may be difficult")
_LIMIT: Final = re.compile(r"(recompile|cache.?size).?limit", re.IGNORECASE)
_WANTED: Final = re.compile(
    r"torch\.compiler\.disable|torch\._dynamo\.(disable|graph_break)|dynamo\.disable"
)
_SIZE: Final = re.compile(
    r"tensor '(?P<what>[^']+)' size mismatch at index (?P<at>\d+)\. "
    r"expected (?P<before>\d+), actual (?P<now>\d+)"
)

_CURES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"size mismatch|rank mismatch|size\(\)|\.size\b|\bs\d+\b|mark_dynamic"),
        (
            "Let sizes be variables: `torch.compile(..., dynamic=True)`, or "
            "`torch._dynamo.mark_dynamic(tensor, dim)` before the call; or pad to a few sizes."
        ),
    ),
    (
        re.compile(r"stride mismatch|storage_offset"),
        "Call it with tensors of one layout: `.contiguous()` before the call.",
    ),
    (
        re.compile(r"requires_grad mismatch"),
        (
            "Call it with tensors that all require gradients, or with none that do: `.detach()` "
            "the others, or compile a function for each use."
        ),
    ),
    (
        re.compile(r"dtype mismatch|dispatch key set mismatch"),
        (
            "Call it with tensors of one type and under the same `autocast`, `no_grad` and "
            "`inference_mode`, or compile a function for each use."
        ),
    ),
    (
        re.compile(r"GLOBAL_STATE|check_global_state|grad_mode|autocast|\.training\b"),
        (
            "It is called under changing `no_grad`, `autocast` or `train()`: compile a function "
            "for each use, such as one for training and one for evaluation."
        ),
    ),
    (
        re.compile(r"BACKEND_MATCH"),
        "Call `torch.compile` once, before the loop, and keep what it returns.",
    ),
    (
        re.compile(r"check_obj_id|check_type_id|deallocated|invalidated| is not? |WEAKREF|hooks"),
        "It meets other objects each time: make what it uses once, before the loop, and keep it.",
    ),
    (
        re.compile(r"^len\(|keys\(\)|dict_contains|length mismatch"),
        (
            "It is called with lists or dictionaries of changing length: pass one tensor for "
            "them all, or always as many."
        ),
    ),
    (
        re.compile(r"=="),
        (
            "A number of Python's changes from call to call: pass it as a tensor, "
            "`torch.tensor(value)`; keep other values that change out of what is compiled."
        ),
    ),
)
_ANY_CURE: Final = "Keep the same for every call what it depends on."

_BREAK_CURES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"^logging\.|[Ll]ogger|builtin operator `print`|warnings\.warn"),
        "Write to the log outside of what is compiled.",
    ),
    (
        re.compile(r"generic_jump|[Dd]ata.dependent (branch|jump|control)"),
        "Let the GPU decide: `torch.where(condition, a, b)` instead of `if`, or `torch.cond`.",
    ),
    (
        re.compile(r"item\(\)|data.dependent operator|_local_scalar_dense|[Dd]ynamic shape oper"),
        "Keep the value a tensor within what is compiled, and read it outside.",
    ),
    (
        re.compile(r"generator|context manager|[Cc]omprehension|try|except"),
        "Write the line more plainly, or move it out of what is compiled.",
    ),
)
_ANY_BREAK_CURE: Final = "Move the line out of what is compiled."


def is_limit(failure: str) -> bool:
    """Whether torch gave up on a function because it was compiled too often.

    Args:
        failure: Why it gave up.
    """
    return _LIMIT.search(failure) is not None


def is_wanted(reason: str) -> bool:
    """Whether the program itself asks for the end of a graph.

    Args:
        reason: Why a graph ended.
    """
    return _WANTED.search(first_line(reason)) is not None


def first_line(reason: str) -> str:
    """A reason's first line, without the version that it is about and without its source.

    Args:
        reason: What torch says.
    """
    line = _COMMENT.sub("", _VERSION.sub("", reason.partition("\n")[0])).strip().rstrip(".")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def cure_of_recompiles(reason: str) -> str:
    """What to do about a function that is compiled again and again.

    Args:
        reason: The guard that does not hold, in torch's words.
    """
    line = first_line(reason)
    size = _SIZE.search(line)
    cure = next((cure for pattern, cure in _CURES if pattern.search(line)), _ANY_CURE)
    if size is None:
        return cure
    return (
        f"Size {size['at']} of `{size['what']}` changes ({size['before']}, then {size['now']}). "
        f"{cure}"
    )


def cure_of_break(reason: str) -> str:
    """What to do about the end of a graph, with the hint of torch itself where it has one.

    Args:
        reason: Why the graph ended, in torch's words.
    """
    line = first_line(reason)
    cure = next((cure for pattern, cure in _BREAK_CURES if pattern.search(line)), _ANY_BREAK_CURE)
    hints = (" ".join(match["hint"].split()) for match in _HINT.finditer(reason))
    hint = next((hint for hint in hints if not _NO_HELP.search(hint)), "")
    if not hint:
        return cure
    short = hint if len(hint) <= _LONGEST else hint[: _LONGEST - 1] + "…"
    return f"{cure} PyTorch's hint: “{short.rstrip('.')}”."
