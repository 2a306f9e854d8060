"""COM011 unprefetched-gather."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.ranks import COMM_STREAM

RULE = "unprefetched-gather"
US = 1_000
N_LAYERS = 4
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
Order = Literal["needed", "implicit", "explicit"]
FSDP2 = ("FSDP::pre_forward ({})", "FSDP::all_gather ({})")
FSDP2_BACKWARD = ("FSDP::pre_backward ({})", "FSDP::all_gather ({})")
FSDP1 = ("FullyShardedDataParallel._pre_forward",)


def gather(
    b: TraceBuilder, layer: int, ns: int, within: tuple[str, ...], *, at_ns: int | None = None
) -> int:
    """Add an all-gather of a layer's parameters, and return when it ends."""
    with ExitStack() as stack:
        for name in within:
            stack.enter_context(b.annotation(name.format(f"layers.{layer}")))
        stack.enter_context(b.op("c10d::_allgather_base_"))
        ident = b.call("LaunchKernel", 4 * US)
        free_ns = max(b.now_ns, b.free_at_ns(0, COMM_STREAM))
        start_ns = free_ns if at_ns is None else max(free_ns, at_ns)
        b.kernel(
            "ncclDevKernel_AllGather_RING_LL",
            ns,
            at_ns=start_ns,
            stream=COMM_STREAM,
            correlation=ident,
            **{"Collective name": "_allgather_base"},
        )

        return start_ns + ns


def compute(b: TraceBuilder, ns: int, *, host_ns: int = 10 * US) -> None:
    b.launch("aten::mm", kernel="gemm", host_ns=host_ns, device_ns=ns)


def model_pass(
    b: TraceBuilder,
    order: Order,
    *,
    gather_ns: int,
    compute_ns: int,
    within: tuple[str, ...],
    host_ns: int = 10 * US,
    backward: bool = False,
) -> None:
    """Add a pass over all layers, each of which waits for the all-gather of its parameters.

    Args:
        order: ``needed``: an all-gather begins when the device has computed all before;
            ``implicit``: it is issued as late, on a stream of its own; ``explicit``: it is issued
            before the computation of the layer before.
    """
    until: dict[int, int] = {}

    def issue(layer: int) -> None:
        at_ns = b.free_at_ns() if order == "needed" else None
        until[layer] = gather(b, layer, gather_ns, within, at_ns=at_ns)

    for layer in range(N_LAYERS):
        with b.op(BACKWARD) if backward else b.op("aten::linear"):
            if layer not in until:
                issue(layer)
            b.wait_for_event(until[layer])
            if order == "explicit" and layer + 1 < N_LAYERS:
                issue(layer + 1)
            compute(b, compute_ns, host_ns=host_ns)


def build_program(
    order: Order,
    *,
    gather_ns: int = 400 * US,
    compute_ns: int = 300 * US,
    within: tuple[str, ...] = FSDP2,
    **of_pass: int | bool,
) -> TraceBuilder:
    """Three steps of a forward pass."""
    b = TraceBuilder(stacks=True, head={"distributedInfo": {"rank": 0, "world_size": 2}})
    for _ in range(3):
        with b.step(), b.frame("train.py", 30, "train_step"):
            model_pass(
                b,
                order,
                gather_ns=gather_ns,
                compute_ns=compute_ns,
                within=within,
                **of_pass,  # type: ignore[arg-type]
            )
            with b.annotation("Optimizer.step#SGD.step"):
                compute(b, 50 * US)
            b.synchronize()

    return b


def test_it_costs_what_the_layer_before_could_overlap(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    (finding,) = found(build_program("needed"), RULE)
    # The first layer has none before it; 300 of 400 us of the others overlap.
    assert finding.cost.per_step_ns == (N_LAYERS - 1) * 300 * US
    assert finding.n == 3 * (N_LAYERS - 1)
    assert finding.evidence["waited_ns"] == 3 * (N_LAYERS - 1) * 400 * US
    assert (finding.cost.basis, finding.severity) == ("upper-bound", "warning")
    assert "`layers.1`, `layers.2` and 1 more" in finding.message
    assert "1.20 ms per step for them, of which 900 µs per step" in finding.message
    assert "set_modules_to_forward_prefetch" in finding.fix
    assert "backward" not in finding.fix
    assert finding.locations[0].line == 30


def test_a_shorter_gather_overlaps_wholly(found: Callable[..., tuple[Finding, ...]]) -> None:
    (finding,) = found(build_program("needed", gather_ns=100 * US), RULE)
    assert finding.cost.per_step_ns == (N_LAYERS - 1) * 100 * US


@pytest.mark.parametrize(
    ("within", "backward", "expected"),
    [
        (FSDP2_BACKWARD, True, "set_modules_to_backward_prefetch"),
        (FSDP1, False, "`forward_prefetch=True`"),
        (FSDP1, True, "BackwardPrefetch.BACKWARD_PRE"),
    ],
    ids=["FSDP2 backward", "FSDP1 forward", "FSDP1 backward"],
)
def test_the_fix_is_for_the_pass(
    found: Callable[..., tuple[Finding, ...]],
    within: tuple[str, ...],
    expected: str,
    *,
    backward: bool,
) -> None:
    (finding,) = found(build_program("needed", within=within, backward=backward), RULE)
    assert expected in finding.fix
    assert finding.evidence["n_in_backward"] == (9 if backward else 0)


def test_the_rate_limiter_is_named_where_it_delays_the_host(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    b = build_program("needed", within=FSDP1)
    for _ in range(2):
        with b.step(), b.annotation("FullyShardedDataParallel.rate_limiter"):
            b.advance(500 * US)
    (finding,) = found(b, RULE)
    assert "limit_all_gathers=False" in finding.fix


def test_gathers_of_zero_are_told_by_its_autograd_functions(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    b = build_program("needed", within=("deepspeed",))
    assert found(b, RULE) == ()
    with b.op("PreBackwardFunctionForModule"):
        b.advance(US)
    (finding,) = found(b, RULE)
    assert "stage3_prefetch_bucket_size" in finding.fix
    assert finding.confidence == "medium"


@pytest.mark.parametrize(
    "silent",
    [
        build_program("implicit"),
        build_program("explicit"),
        build_program("implicit", gather_ns=900 * US),
        build_program("explicit", gather_ns=900 * US),
        build_program("explicit", host_ns=350 * US),
        build_program("needed", compute_ns=1 * US, host_ns=5 * US),
        build_program("needed", gather_ns=2 * US),
        build_program("needed", within=("FullyShardedDataParallel.forward",)),
    ],
    ids=[
        "FSDP's own prefetching", "prefetched", "transfers are longer than layers",
        "prefetched, but longer than layers", "prefetched by a slow host", "nothing to overlap",
        "short ones", "tensor parallelism within FSDP",
    ],
)  # fmt: skip
def test_it_is_silent_where_gathers_overlap_or_cannot(
    found: Callable[..., tuple[Finding, ...]], silent: TraceBuilder
) -> None:
    assert found(silent, RULE) == ()


def test_the_first_gather_of_a_pass_has_nothing_before_it(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    b = TraceBuilder(stacks=True, head={"distributedInfo": {"rank": 0, "world_size": 2}})
    for _ in range(3):
        with b.step():
            for name, kind in (("aten::linear", FSDP2), (BACKWARD, FSDP2_BACKWARD)):
                compute(b, 300 * US)
                with b.op(name):
                    b.wait_for_event(gather(b, 0, 400 * US, kind, at_ns=b.free_at_ns()))
                    compute(b, 300 * US)
            b.synchronize()
    assert found(b, RULE) == ()


def test_exposed_communication_has_the_rest(analyzed: Callable[..., Report]) -> None:
    b = build_program("needed")
    both = analyzed(b, "COM")
    by_name = {finding.name: finding.cost.per_step_ns for finding in both.findings}
    # The first all-gather, less the time in which the host launches what waits for it.
    saved_ns = 400 * US - 14 * US + 3 * 100 * US
    assert by_name == {RULE: 3 * 300 * US, "exposed-communication": saved_ns}
    assert analyzed(build_program("needed", gather_ns=300 * US), "COM").findings[0].name == RULE


def test_it_is_skipped_without_operators(
    analyzed: Callable[..., Report], device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "COM011"
