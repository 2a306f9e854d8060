"""What memory is used for, by the evidence of the stack that allocated it.

A stack says what ran, not what became of it. The innermost frame that tells anything decides: a
forward pass that runs again within backward allocates activations.
"""

import re
from typing import Final, Literal

import numpy as np

from profkit.index.snapshot.stack_lines import best_frame_places, is_python
from profkit.model.events import Int32s, Mask
from profkit.model.location import Frame
from profkit.model.snapshot import NO_STACK, Stacks, UInt8s

Use = Literal[
    "unknown", "parameter", "gradient", "optimizer-state", "activation", "input", "workspace",
    "communication",
]  # fmt: skip
USES: Final[tuple[Use, ...]] = (
    "unknown", "parameter", "gradient", "optimizer-state", "activation", "input", "workspace",
    "communication",
)  # fmt: skip
"""In the order of their numbers."""

_NUMBER: Final = {use: number for number, use in enumerate(USES)}

_PYTHON: Final[tuple[tuple[Use, str, str], ...]] = (
    # An optimizer's own files, and the wrapper that torch puts around every step, the user's too.
    ("optimizer-state",
     r"(torch|apex|bitsandbytes|timm)[/\\](optim|optimizers)[/\\](?!lr_scheduler|swa_utils)", r""),
    # Of custom functions the user's own: ``apply`` is around their forward passes too.
    ("gradient", r"", r"^(backward|_engine_run_backward)$"),
    ("parameter", r"torch[/\\]nn[/\\]modules[/\\]module\.py$",
     r"^(_apply|convert|to|to_empty|cuda|half|float|double|bfloat16|load_state_dict)$"),
    ("parameter", r"torch[/\\]nn[/\\](init|parameter)\.py$", r""),
    ("parameter", r"torch[/\\]nn[/\\]modules[/\\]\w+\.py$", r"^(__init__|reset_parameters)$"),
    ("parameter", r"[/\\]modeling_utils\.py$", r"load_|from_pretrained"),
    ("activation", r"torch[/\\]nn[/\\]modules[/\\]module\.py$", r"_call_impl$"),
    ("activation", r"torch[/\\]nn[/\\]functional\.py$", r""),
    ("input", r"torch[/\\]utils[/\\]data[/\\]", r""),
    ("communication", r"torch[/\\]distributed[/\\](distributed_c10d|_functional_collectives)\.py$",
     r""),
    ("communication", r"torch[/\\]distributed[/\\].*_fsdp_(collectives|param_group|param)\.py$",
     r"gather|reduce|alloc"),
)  # fmt: skip
"""A use, the file that tells of it, and the function there."""

_COMPILED: Final[tuple[tuple[Use, str], ...]] = (
    ("workspace", r"[Ww]orkspace"),
    ("communication", r"c10d::"),
    ("gradient", r"torch::autograd::(Engine|python::PythonEngine|AccumulateGrad)"),
    ("input", r"dispatch_to\(at::Tensor const&, c10::Device|THPVariable_(cuda|xpu)\("),
)
"""A use, and what the name of a compiled function holds."""

_RULES: Final = tuple((use, re.compile(f), re.compile(n)) for use, f, n in _PYTHON)
_COMPILED_RULES: Final = tuple((use, re.compile(name)) for use, name in _COMPILED)
_MAKES_STATE: Final = re.compile(r"^_init_group$|^init_state")


def uses(stacks: Stacks) -> UInt8s:
    """The use that each stack tells of, as a number of :data:`USES`. Shape ``(k,)``."""
    number = np.fromiter(map(_use, stacks.frames), np.int64, len(stacks.frames))
    found = np.zeros(len(stacks), dtype=np.uint8)
    place = best_frame_places(stacks, (number == 0).astype(np.int64))
    has = place >= 0
    found[has] = number[stacks.frame[place[has]]]
    return found


def makes_optimizer_state(stacks: Stacks) -> Mask:
    """Stacks in which an optimizer makes its state, and nothing that it drops. Shape ``(k,)``.

    Source: ``torch/optim/adamw.py`` (``_init_group``), and likewise in the files beside it.
    """
    telling = np.fromiter(
        (_MAKES_STATE.search(frame.function) is not None for frame in stacks.frames),
        np.bool_,
        len(stacks.frames),
    )
    place = best_frame_places(stacks, (~telling).astype(np.int64))
    found = np.zeros(len(stacks), dtype=np.bool_)
    has = place >= 0
    found[has] = telling[stacks.frame[place[has]]]
    return found


def use_of_blocks(stack: Int32s, is_freed: Mask, of_stack: UInt8s, is_state: Mask) -> UInt8s:
    """The use of each of some blocks.

    What a step of an optimizer allocates and frees again is no state of it, but room to work in.

    Args:
        stack: Their stacks. Shape ``(b,)``.
        is_freed: Which are freed again. Shape ``(b,)``.
        of_stack: What :func:`uses` says.
        is_state: What :func:`makes_optimizer_state` says.
    """
    if not len(of_stack):
        return np.zeros(len(stack), dtype=np.uint8)
    use = np.where(stack == NO_STACK, 0, of_stack[stack])
    works = (use == _NUMBER["optimizer-state"]) & is_freed & ~is_state[stack]
    return np.where(works, _NUMBER["workspace"], use).astype(np.uint8)


def _use(frame: Frame) -> int:
    if not is_python(frame):
        found = (use for use, name in _COMPILED_RULES if name.search(frame.function))
    else:
        found = (
            use
            for use, file, function in _RULES
            if file.search(frame.file) and function.search(frame.function)
        )
    return _NUMBER[next(found, "unknown")]
