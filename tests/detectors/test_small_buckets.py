"""COM010 small-buckets."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.detectors.ranks import COMM_STREAM, NCCL
from tests.detectors.test_exposed_communication_on_host import gloo

RULE = "small-buckets"
US = 1_000
HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
OF_MODEL = "autograd::engine::evaluate_function: _CopyToModelParallelRegionBackward"
COMPILED = "autograd::engine::evaluate_function: CompiledFunctionBackward"


def build_program(
    n: int,
    *,
    n_elements: int | None = 1_000,
    dur_ns: int = 20 * US,
    within: str | None = HOOK,
    n_gradients: int = 0,
) -> TraceBuilder:
    """Steps whose backward pass is followed by all-reduces on a stream of their own.

    Args:
        n_elements: Of each; None where it is not recorded.
        within: The operator that starts them; None if the program does.
        n_gradients: Number of gradients that the pass accumulates after them.
    """
    b = TraceBuilder(stacks=True, head={"distributedInfo": {"rank": 0, "world_size": 2}})
    size = {} if n_elements is None else {"In msg nelems": n_elements, "dtype": "Float"}

    for _ in range(3):
        with b.step(), b.frame("train.py", 30, "train_step"):
            with b.op("autograd::engine::evaluate_function: MmBackward0"):
                b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=1_000 * US)
            for _ in range(n):
                with b.op(within) if within else nullcontext():
                    reduce(b, dur_ns, size)
            for _ in range(n_gradients):
                b.compute(HOOK, 2 * US)
            b.wait_for_event(b.free_at_ns())
            with b.annotation("Optimizer.step#SGD.step"):
                b.launch(
                    "aten::_foreach_add_", kernel="foreach", host_ns=10 * US, device_ns=50 * US
                )
            b.synchronize()

    return b


def reduce(b: TraceBuilder, dur_ns: int, size: dict[str, object]) -> None:
    with b.op("c10d::allreduce_"), b.annotation("nccl:all_reduce"):
        ident = b.call("LaunchKernel", 4 * US)
        b.kernel(
            NCCL,
            dur_ns,
            correlation=ident,
            stream=COMM_STREAM,
            at_ns=b.free_at_ns(),
            **{"Collective name": "allreduce"},
            **size,
        )


@pytest.mark.parametrize("n_elements", [1_000, None], ids=["with sizes", "without sizes"])
@pytest.mark.parametrize("within", [HOOK, None], ids=["DDP", "a loop"])
def test_many_small_all_reduces_could_be_one(
    found: Callable[..., tuple[Finding, ...]], n_elements: int | None, within: str | None
) -> None:
    (finding,) = found(build_program(40, n_elements=n_elements, within=within), RULE)
    assert finding.n == 3 * 40
    # One of 40 remains, or with sizes the first bucket and one more.
    n_kept = 1 if n_elements is None else 2
    assert finding.cost.per_step_ns == pytest.approx((40 - n_kept) * 20 * US, rel=0.02)
    assert (finding.cost.basis, finding.severity) == ("estimate", "warning")
    assert "40 all-reduces per step" in finding.message
    assert finding.locations[0].line == 30


@pytest.mark.parametrize(
    "silent",
    [
        build_program(2, n_elements=5 << 20, dur_ns=400 * US),
        build_program(12, n_elements=6 << 20, dur_ns=400 * US),
        build_program(6),
        build_program(40, within=OF_MODEL),
        build_program(40, within=OF_MODEL, n_gradients=120),
        build_program(40, n_elements=None, dur_ns=200 * US),
    ],
    ids=[
        "cured",
        "many bytes",
        "few",
        "a model's",
        "tensor parallelism",
        "long ones without sizes",
    ],
)
def test_it_is_silent_where_gradients_are_reduced_in_large_pieces(
    found: Callable[..., tuple[Finding, ...]], silent: TraceBuilder
) -> None:
    assert found(silent, RULE) == ()


def test_a_compiled_backward_pass_may_reduce_each_gradient(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    (finding,) = found(build_program(40, within=COMPILED, n_gradients=40), RULE)
    assert "40 all-reduces per step" in finding.message
    assert finding.fix.startswith("Wrap the model in `DistributedDataParallel`")


def test_what_large_ones_transfer_is_transferred_all_the_same(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    def reduce_also(n_large: int) -> TraceBuilder:
        b = build_program(40)
        with b.step():
            for number in range(160):
                with b.op(HOOK):
                    is_large = number < n_large
                    reduce(
                        b,
                        2_000 * US if is_large else 20 * US,
                        {"In msg nelems": 1_000, "dtype": "Float"},
                    )
            b.wait_for_event(b.free_at_ns())
            b.synchronize()
        return b

    (small,), (large,) = found(reduce_also(0), RULE), found(reduce_also(40), RULE)
    assert large.cost.ns == pytest.approx(small.cost.ns, rel=0.05)


def test_small_buckets_on_host_threads(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    def by_gloo(n: int) -> TraceBuilder:
        b = TraceBuilder(device_names=(), head={"distributedInfo": {"rank": 0, "world_size": 2}})
        for _ in range(3):
            with b.step(), b.frame("train.py", 10, "train_step"):
                b.compute("autograd::engine::evaluate_function: MmBackward0", 500 * US)
                for _ in range(n):
                    with b.op(HOOK), b.frame("train.py", 40, "backward"):
                        gloo(b, 400 * US, dims=[[[1_000]]], types=["TensorList"])
        return b

    assert found(by_gloo(2), RULE) == ()
    (finding,) = found(by_gloo(40), RULE)
    # The first bucket and one more remain of 40.
    assert finding.cost.per_step_ns == pytest.approx(38 * 400 * US, rel=0.02)
    assert finding.locations[0].line == 40
    assert "of the GPU" not in finding.message


def test_one_rank_has_nobody_to_reduce_with(found: Callable[..., tuple[Finding, ...]]) -> None:
    b = build_program(40)
    b.head["distributedInfo"] = {"rank": 0, "world_size": 1}
    assert found(b, RULE) == ()


def test_it_is_skipped_without_operators(
    analyzed: Callable[..., Report], device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "COM010"


def test_exposed_communication_gives_the_same_advice(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    b = build_program(40)
    with b.step():
        b.compute("torch::distributed::reducer::mul_out", US)
    (small,), (exposed,) = found(b, RULE), found(b, "exposed-communication")
    assert small.fix == exposed.fix
    assert "bucket_cap_mb" in small.fix
