"""What memory is used for is told by the innermost frame that tells anything."""

import numpy as np
import pytest

from profkit.index.snapshot.allocation_use import (
    USES,
    find_block_uses,
    find_uses,
)
from profkit.index.snapshot.stack_lines import NO_LINE, find_stack_lines, is_python
from profkit.model.location import Frame, Location
from profkit.model.snapshot import NO_STACK, Stacks

SITE = "/venv/lib/python3.12/site-packages"
TORCH = f"{SITE}/torch"
MODULE = f"{TORCH}/nn/modules/module.py"
USER = ("/home/u/train.py", 12, "main")
CALL = (MODULE, 1775, "_call_impl")
BACKWARD = (f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward")

FrameLike = tuple[str, int, str]


def stacks(*each: tuple[FrameLike, ...]) -> Stacks:
    numbers: dict[FrameLike, int] = {}
    flat = [numbers.setdefault(frame, len(numbers)) for stack in each for frame in stack]
    start = np.cumsum([0, *map(len, each)]).astype(np.int32)
    return Stacks(tuple(Frame(*f) for f in numbers), start, np.array(flat, dtype=np.int32))


def use(*frames: FrameLike) -> str:
    return USES[find_uses(stacks(frames))[0]]


@pytest.mark.parametrize(
    ("expected", "frames"),
    [
        ("unknown", (USER,)),
        ("parameter", ((MODULE, 1357, "convert"), (MODULE, 957, "_apply"), USER)),
        ("parameter", ((f"{TORCH}/nn/modules/linear.py", 106, "__init__"), USER)),
        ("activation", (("/home/u/net.py", 4, "forward"), CALL, USER)),
        ("activation", ((f"{TORCH}/nn/functional.py", 1500, "relu"), USER)),
        ("optimizer-state", ((f"{TORCH}/optim/adamw.py", 180, "_init_group"), USER)),
        # The user's own optimizer is known by the wrapper that torch puts around its step.
        ("optimizer-state", (("/home/u/mine.py", 75, "step"),
                             (f"{TORCH}/optim/optimizer.py", 526, "wrapper"), USER)),
        ("unknown", ((f"{TORCH}/optim/lr_scheduler.py", 200, "step"), USER)),
        ("unknown", (("/home/u/optim/data.py", 3, "read"), USER)),
        ("gradient", (BACKWARD, USER)),
        ("gradient", (("/home/u/op.py", 30, "backward"),
                      (f"{TORCH}/autograd/function.py", 307, "apply"))),
        ("gradient", (("??", 0, "at::empty_cuda"),
                      ("engine.cpp", 0, "torch::autograd::Engine::evaluate_function(...)"))),
        # Within backward a forward pass that runs again keeps activations.
        ("activation", (("/home/u/net.py", 4, "forward"), CALL, BACKWARD, USER)),
        # A closure that an optimizer calls runs the forward pass.
        ("activation", (CALL, ("/home/u/train.py", 30, "closure"),
                        (f"{TORCH}/optim/lbfgs.py", 300, "step"), USER)),
        ("input", ((f"{TORCH}/utils/data/_utils/pin_memory.py", 50, "pin_memory"), USER)),
        ("input", (("python_variable_methods.cpp", 0,
                    "torch::autograd::dispatch_to(at::Tensor const&, c10::Device, bool)"), USER)),
        ("workspace", (("Blas.cpp", 0, "at::cuda::getCUDABlasLtWorkspace()"), CALL, USER)),
        ("communication", (("??", 0, "c10d::Reducer::initialize_buckets()"), USER)),
        ("communication", ((f"{TORCH}/distributed/distributed_c10d.py", 3000, "all_gather"), USER)),
        ("unknown", (USER, (f"{TORCH}/distributed/elastic/multiprocessing/errors/__init__.py",
                            362, "wrapper"))),
        ("optimizer-state", ((f"{SITE}\\torch\\optim\\adamw.py".replace("/", "\\"), 9, "step"),)),
    ],
)  # fmt: skip
def test_the_innermost_evidence_decides(expected: str, frames: tuple[FrameLike, ...]) -> None:
    assert use(*frames) == expected


def test_blocks_that_an_optimizer_step_frees_are_workspace() -> None:
    works = ((f"{TORCH}/optim/adamw.py", 480, "_multi_tensor_adamw"), USER)
    state = ((f"{TORCH}/optim/adamw.py", 180, "_init_group"), USER)
    of = stacks(works, state)
    stack = np.array([0, 0, 1, NO_STACK], dtype=np.int32)
    freed = np.array([True, False, True, True])
    never = np.zeros(4, np.bool_)
    uses = find_block_uses(of, stack, freed, never)
    assert [USES[use] for use in uses] == [
        "workspace",
        "optimizer-state",
        "optimizer-state",
        "unknown",
    ]


def test_recorded_blocks_without_a_stack_are_of_the_backward_pass() -> None:
    of = stacks((CALL, USER))
    stack = np.array([NO_STACK, NO_STACK, 0], dtype=np.int32)
    is_recorded = np.array([True, False, True])
    freed = np.zeros(3, np.bool_)
    uses = find_block_uses(of, stack, freed, is_recorded)
    assert [USES[use] for use in uses] == ["gradient", "unknown", "activation"]


def test_profkits_own_frames_are_not_lines_of_the_user() -> None:
    mode = ("/home/u/profkit/profkit/capture/memory/monitor/allocation_sites.py", 261, "dispatch")
    of = stacks((mode, USER))
    (line,) = find_stack_lines(of).of(np.array([0], np.int32))
    assert of.frames[line] == Frame(*USER)


def test_without_stacks_every_use_is_unknown() -> None:
    none = stacks()
    stack, is_any = np.array([NO_STACK], np.int32), np.array([True])
    uses = find_block_uses(none, stack, is_any, is_any)
    assert uses.tolist() == [0]


@pytest.mark.parametrize(
    ("expected", "frames"),
    [
        ("train.py:12", ((f"{TORCH}/nn/functional.py", 5, "relu"), CALL, USER)),
        ("net.py:4", (("/home/u/net.py", 4, "forward"), CALL, USER)),
        # A program that is installed itself: its innermost line, not torch's.
        ("train.py:547", (CALL, (f"{SITE}/torchtitan/train.py", 547, "step"),
                          ("/usr/lib/python3.12/runpy.py", 86, "_run_code"))),
        ("module.py:1775", (CALL, ("/usr/lib/python3.12/runpy.py", 86, "_run_code"))),
        ("1234.py:2", (("/var/ipykernel_77/1234.py", 2, "<module>"),)),
        ("<ipython-input-3-ab>:2", ((MODULE, 1, "f"), ("<ipython-input-3-ab>", 2, "<module>"))),
        ("train.py:12", (("/var/torchinductor_u/ab/cabc.py", 300, "call"), USER)),
        ("net.py:4", (("/home/u/pytorch/torch/nn/modules/module.py", 5, "_call_impl"),
                      ("/home/u/net.py", 4, "forward"))),
        ("train.py:12", (("CUDACachingAllocator.cpp", 0, "malloc"), ("??", 0, "at::empty"),
                         ("thread48.o", 0, "clone"), ("clone3.S", 81, "__clone3"), USER)),
        ("source line not recorded", (("libtorch.so", 0, "f"), ("", 0, "g"))),
        ("source line not recorded", ()),
    ],
)  # fmt: skip
def test_the_source_line_of_a_stack(expected: str, frames: tuple[FrameLike, ...]) -> None:
    of = stacks((USER,), frames, (CALL,))
    lines = find_stack_lines(of)
    (line,) = lines.of(np.array([1], dtype=np.int32)).tolist()
    assert lines.location(line).place == expected


def test_a_block_without_a_stack_has_no_line() -> None:
    lines = find_stack_lines(stacks((USER,)))
    assert lines.of(np.array([NO_STACK, 0], dtype=np.int32)).tolist() == [NO_LINE, 0]
    assert lines.location(NO_LINE) == Location()
    assert lines.python(NO_STACK) == ()


def test_python_frames_of_a_mixed_stack_are_in_order() -> None:
    mixed = (("??", 0, "at::empty"), CALL, ("call.c", 255, "_PyEval"), USER)
    assert [frame.line for frame in find_stack_lines(stacks(mixed)).python(0)] == [1775, 12]
    assert not is_python(Frame("??", 0, "at::empty"))
    assert is_python(Frame("/Workspace/Users/u/notebook", 3, "<module>"))
