"""The use of memory, derived from the stack that allocated it.

The innermost matching frame decides: a forward pass that is rerun within backward allocates
activations.
"""

from typing import Final, Literal, get_args

import numpy as np

from profkit.index.snapshot.stack_lines import find_best_frame_places, is_python, stacks_with
from profkit.model.events import Int32s, Mask
from profkit.model.location import Frame
from profkit.model.snapshot import NO_STACK, Stacks, UInt8s
from profkit.patterns import regex

Use = Literal[
    "unknown",
    "parameter",
    "gradient",
    "optimizer-state",
    "activation",
    "input",
    "workspace",
    "communication",
]
USES: Final[tuple[Use, ...]] = get_args(Use)
"""By number."""

_NUMBER: Final = {use: number for number, use in enumerate(USES)}

_PYTHON: Final[tuple[tuple[Use, str, str], ...]] = (
    # Files of optimizers, including torch's wrapper around the steps of custom ones.
    ("optimizer-state",
     r"(torch|apex|bitsandbytes|timm)[/\\](optim|optimizers)[/\\](?!lr_scheduler|swa_utils)", r""),
    # Backward functions of custom autograd functions; ``apply`` also encloses their forward.
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
"""A use, and patterns of the file and function that show it."""

_COMPILED: Final[tuple[tuple[Use, str], ...]] = (
    ("workspace", r"[Ww]orkspace"),
    ("communication", r"c10d::"),
    ("gradient", r"torch::autograd::(Engine|python::PythonEngine|AccumulateGrad)"),
    ("input", r"dispatch_to\(at::Tensor const&, c10::Device|THPVariable_(cuda|xpu)\("),
)
"""A use, and a pattern of the name of a C++ function."""

_RULES: Final = tuple((use, regex(f), regex(n)) for use, f, n in _PYTHON)
_COMPILED_RULES: Final = tuple((use, regex(name)) for use, name in _COMPILED)
_MAKES_STATE: Final = regex(r"^_init_group$|^init_state")


def find_uses(stacks: Stacks) -> UInt8s:
    """Find the use that each stack shows, as a number of :data:`USES`. Shape ``(k,)``."""
    number = np.fromiter(map(_find_use, stacks.frames), np.int64, len(stacks.frames))
    use = np.zeros(len(stacks), dtype=np.uint8)
    place = find_best_frame_places(stacks, (number == 0).astype(np.int64))
    has_frame = place >= 0
    use[has_frame] = number[stacks.frame[place[has_frame]]]
    return use


def makes_optimizer_state(stacks: Stacks) -> Mask:
    """Find the stacks in which an optimizer creates state, not temporary tensors. Shape ``(k,)``.

    Source: ``torch/optim/adamw.py`` (``_init_group``), and the other optimizers there.
    """
    matches = np.fromiter(
        (_MAKES_STATE.search(frame.function) is not None for frame in stacks.frames),
        np.bool_,
        len(stacks.frames),
    )
    return stacks_with(stacks, matches)


def find_block_uses(stacks: Stacks, stack: Int32s, is_freed: Mask, is_recorded: Mask) -> UInt8s:
    """Find the use of some blocks, as numbers of :data:`USES`.

    Blocks that an optimizer's step allocates and frees again are workspace, not state. Blocks
    without a stack in a history with stacks are of the backward pass: for a GPU, autograd has a
    thread in which no Python function runs. Source: ``Engine::start_device_threads`` in
    ``torch/csrc/autograd/engine.cpp``; of an MLP's allocations on an H100, three in four were so.

    Args:
        stack: The number of each block's stack. Shape ``(b,)``.
        is_freed: Which blocks are freed again. Shape ``(b,)``.
        is_recorded: Which were allocated while the history was recorded. Shape ``(b,)``.
    """
    if not len(stacks):
        return np.zeros(len(stack), dtype=np.uint8)

    without_stack = np.where(is_recorded, _NUMBER["gradient"], 0)
    use = np.where(stack == NO_STACK, without_stack, find_uses(stacks)[stack])
    is_temporary = is_freed & ~makes_optimizer_state(stacks)[stack]
    is_workspace = (use == _NUMBER["optimizer-state"]) & is_temporary
    return np.where(is_workspace, _NUMBER["workspace"], use).astype(np.uint8)


def _find_use(frame: Frame) -> int:
    if is_python(frame):
        uses_of_frame = (
            use
            for use, file, function in _RULES
            if file.search(frame.file) and function.search(frame.function)
        )
    else:
        uses_of_frame = (use for use, name in _COMPILED_RULES if name.search(frame.function))
    return _NUMBER[next(uses_of_frame, "unknown")]
