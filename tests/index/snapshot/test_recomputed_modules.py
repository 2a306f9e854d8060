"""The peak if the activations of modules were computed again in the backward pass."""

import pytest

from profkit.index.snapshot.recomputed_modules import RecomputedModules, find_recomputed_modules
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import ReferenceBlock
from tests.index.snapshots import memories

GIB = 1 << 30
TORCH = "/venv/lib/python3.12/site-packages/torch/"
MODULE = TORCH + "nn/modules/module.py"
GRAPH = TORCH + "autograd/graph.py"
CHECKPOINT = TORCH + "utils/checkpoint.py"
N_LAYERS = 4


def train(b: SnapshotBuilder, *, n_steps: int = 1, has_backward: bool = True) -> SnapshotBuilder:
    """A loop over layers that keep 3 GiB each: two activations and an output of 1 GiB."""
    with b.frame("train.py", 2, "main"), b.frame(MODULE, 900, "_apply"):
        b.alloc(GIB)
    for _ in range(n_steps):
        kept: list[list[ReferenceBlock]] = []
        with b.frame("train.py", 9, "main"), b.frame(MODULE, 1775, "_call_impl"):
            kept += [layer(b) for _ in range(N_LAYERS)]
        if has_backward:
            backward(b, kept)
    return b


def layer(b: SnapshotBuilder) -> list[ReferenceBlock]:
    with b.frame("net.py", 30, "forward"), b.frame(MODULE, 1775, "_call_impl"):
        blocks = []
        for line in (11, 12, 13):
            with b.frame("net.py", line, "forward"):
                blocks.append(b.alloc(GIB))
                b.free(b.alloc(GIB // 4))
    return blocks


def backward(b: SnapshotBuilder, kept: list[list[ReferenceBlock]]) -> None:
    with b.frame("train.py", 10, "main"), b.frame(GRAPH, 824, "_engine_run_backward"):
        for blocks in reversed(kept):
            gradient = b.alloc(GIB // 2)
            for block in reversed(blocks):
                b.free(block)
            b.free(gradient)


def find(b: SnapshotBuilder) -> RecomputedModules | None:
    (memory,) = memories(b)
    return find_recomputed_modules(memory.snapshot, memory.replay)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_each_call_keeps_its_output_and_is_computed_again_when_its_backward_begins(
    n_steps: int,
) -> None:
    modules = find(train(SnapshotBuilder(), n_steps=n_steps))
    assert modules is not None
    # At the peak all layers have both activations, and three of them have ended.
    assert (modules.n, modules.n_bytes) == (N_LAYERS * n_steps, N_LAYERS * 2 * GIB)

    # In the last layer: the parameters, three outputs, its own three blocks, and one more.
    assert modules.peak_bytes == (1 + N_LAYERS - 1 + 3) * GIB + GIB // 4


def test_what_is_computed_again_may_be_the_peak() -> None:
    b = SnapshotBuilder()
    kept = [layer(b) for _ in range(N_LAYERS)]
    # Something else is large while the first layer, the last in the backward pass, is computed.
    backward(b, kept[1:])
    with b.frame("train.py", 10, "main"), b.frame(GRAPH, 824, "_engine_run_backward"):
        large = b.alloc(8 * GIB)
        b.free(*reversed(kept[0]), large)
    modules = find(b)
    assert modules is not None
    assert modules.peak_bytes == (8 + 2) * GIB, "its activations, beside what is large"


def test_it_is_the_line_that_calls_the_layers_and_not_the_one_that_calls_the_model() -> None:
    b = train(SnapshotBuilder())
    (memory,) = memories(b)
    modules = find_recomputed_modules(memory.snapshot, memory.replay)
    assert modules is not None
    assert memory.lines.location(modules.frame).place == "net.py:30"


def test_a_forward_pass_alone_has_nothing_to_compute_again() -> None:
    assert find(train(SnapshotBuilder(), has_backward=False)) is None


def test_a_program_with_checkpoints_has_them_already() -> None:
    b = SnapshotBuilder()
    with b.frame(CHECKPOINT, 488, "checkpoint"):
        train(b)
    assert find(b) is None


def test_activations_that_end_with_their_call_are_not_kept() -> None:
    b = SnapshotBuilder()
    for _ in range(N_LAYERS):
        b.free(*layer(b))
    with b.frame(GRAPH, 824, "_engine_run_backward"):
        b.alloc(GIB)
    modules = find(b)
    (memory,) = memories(b)
    assert modules is None or modules.peak_bytes == memory.replay.active_bytes.max()


def test_compiled_frames_may_lie_between_a_call_and_the_module() -> None:
    b = SnapshotBuilder()
    with (
        b.frame("train.py", 9, "main"),
        b.frame("??", 0, "_PyEval_Vector"),
        b.frame(MODULE, 1775, "_call_impl"),
        b.frame("??", 0, "at::_ops::mm::call"),
    ):
        kept = [layer(b) for _ in range(N_LAYERS)]
    backward(b, kept)
    (memory,) = memories(b)
    modules = find_recomputed_modules(memory.snapshot, memory.replay)
    assert modules is not None
    assert memory.lines.location(modules.frame).place == "net.py:30"
