"""peak-dominated-by-one-line reports how much lower the peak is without a line's tensors."""

import contextlib
from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder

RULE = "peak-dominated-by-one-line"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

GIB = 1 << 30
TORCH = "/venv/lib/python3.12/site-packages/torch/"
MODULE = TORCH + "nn/modules/module.py"
GRAPH = TORCH + "autograd/graph.py"
CHECKPOINT = TORCH + "utils/checkpoint.py"


def attention(*, spike_bytes: int = 4 * GIB) -> SnapshotBuilder:
    """Parameters of 2 GiB; each layer keeps 1 GiB, and has a tensor of its own for a while."""
    b = SnapshotBuilder()
    with b.frame("train.py", 2, "main"), b.frame(MODULE, 900, "_apply"):
        b.alloc(2 * GIB)
    for line in (10, 20):
        with b.frame(MODULE, 1775, "_call_impl"):
            with b.frame("net.py", line, "forward"):
                b.alloc(GIB)
            with b.frame("net.py", 15, "attend"):
                b.free(b.alloc(spike_bytes))
    return b


def test_it_reports_what_the_peak_would_be_without_the_line(found: Found) -> None:
    (finding,) = found(attention(), RULE)
    # With it 2 + 2 + 4 GiB at once; without it the parameters and both layers' own.
    assert finding.evidence["peak_bytes"] == 8 * GIB
    assert finding.evidence["peak_without_bytes"] == 4 * GIB
    assert finding.cost.bytes == 4 * GIB
    assert finding.cost.basis == "upper-bound"
    assert finding.severity == "note"
    assert finding.locations[0].place == "net.py:15"
    assert finding.evidence["category"] == "activation"
    assert finding.n == 1


def test_a_peak_with_another_one_beside_it_is_not_lowered(found: Found) -> None:
    b = attention(spike_bytes=GIB)
    with b.frame("other.py", 1, "late"):
        b.free(b.alloc(GIB))
    assert found(b, RULE) == ()


def test_parameters_and_optimizer_state_make_no_peak(found: Found) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 2, "main"), b.frame(MODULE, 900, "_apply"):
        b.alloc(2 * GIB)
    optimizer = "/venv/lib/python3.12/site-packages/torch/optim/adamw.py"
    with b.frame("train.py", 9, "main"), b.frame(optimizer, 150, "_init_group"):
        b.alloc(4 * GIB)
    assert found(b, RULE) == ()


def test_what_stays_and_does_not_show_its_use_makes_no_peak(found: Found) -> None:
    b = SnapshotBuilder()
    with b.frame("load.py", 2, "weights"):
        b.alloc(4 * GIB)
    with b.frame("work.py", 3, "work"):
        b.free(b.alloc(GIB))
    assert found(b, RULE) == ()


def test_what_was_there_before_the_recording_makes_no_peak(found: Found) -> None:
    b = SnapshotBuilder(max_entries=3)
    with b.frame("load.py", 2, "weights"):
        b.alloc(8 * GIB)
    with b.frame("train.py", 2, "main"):
        b.free(b.alloc(512))
    assert found(b, RULE) == ()


def test_a_history_of_one_entry_has_no_peak(found: Found) -> None:
    b = SnapshotBuilder(max_entries=1)
    with b.frame(MODULE, 1775, "_call_impl"), b.frame("net.py", 15, "attend"):
        b.alloc(4 * GIB)
    assert found(b, RULE) == ()


def test_a_small_program_has_nothing_to_gain(found: Found) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 2, "main"):
        b.free(b.alloc(1 << 20))
    assert found(b, RULE) == ()


def test_a_trace_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM015"


def build_layers(*, is_checkpointed: bool = False) -> SnapshotBuilder:
    """Four layers that keep 2 GiB and an output of 1 GiB each, and their backward pass."""
    b = SnapshotBuilder()
    blocks = []

    with contextlib.ExitStack() as stack:
        stack.enter_context(b.frame("train.py", 9, "main"))
        stack.enter_context(b.frame(MODULE, 1775, "_call_impl"))
        if is_checkpointed:
            stack.enter_context(b.frame(CHECKPOINT, 488, "checkpoint"))
        for _ in range(4):
            with b.frame("net.py", 30, "forward"), b.frame(MODULE, 1775, "_call_impl"):
                for line in (11, 12, 13):
                    with b.frame("net.py", line, "forward"):
                        blocks.append(b.alloc(GIB))

    with b.frame("train.py", 10, "main"), b.frame(GRAPH, 824, "_engine_run_backward"):
        b.alloc(GIB // 2)
        b.free(*reversed(blocks))
    return b


def test_layers_that_dominate_the_peak_are_told_with_the_peak_under_checkpoints(
    found: Found,
) -> None:
    (finding,) = found(build_layers(), RULE)
    assert finding.locations[0].place == "net.py:30"
    assert (finding.n, finding.evidence["modules_bytes"]) == (4, 8 * GIB)
    assert finding.evidence["peak_bytes"] == 12 * GIB + GIB // 2

    # Three outputs, and the three blocks of the last layer.
    assert finding.evidence["peak_without_bytes"] == 6 * GIB
    assert finding.cost.basis == "estimate"
    assert "torch.utils.checkpoint" in finding.fix


def test_checkpoints_that_are_there_are_not_advised(found: Found) -> None:
    (finding,) = found(build_layers(is_checkpointed=True), RULE)
    assert finding.locations[0].file == "net.py"
    assert "torch.utils.checkpoint" not in finding.fix
    assert "checkpoints keep less" in finding.fix
