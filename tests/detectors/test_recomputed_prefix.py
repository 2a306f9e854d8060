"""recomputed-prefix finds decoding without a cache."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import LiveBuilder, TraceBuilder

RULE = "recomputed-prefix"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS = 1_000_000
BATCH, WIDTH, VOCABULARY, N_LAYERS = 2, 64, 1000, 2
LENGTHS = (100, 101, 102)
NEW_SHARE = sum(1 / length for length in LENGTHS) / len(LENGTHS)


def program(
    lengths: tuple[int, ...] = LENGTHS,
    *,
    appends: bool = True,
    chooses_of: int | None = None,
    is_trained: bool = False,
    other_ns: int = 0,
) -> TraceBuilder:
    """A step for each length of the input, in which a model computes all of it.

    Args:
        appends: Whether the next position is appended by ``torch.cat``.
        chooses_of: Of how many tokens one is chosen; by default none is.
        is_trained: Whether a backward pass follows.
        fixed: Rows of a further product in each call.
        other_ns: Time of an operator on another tensor.
    """
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for length in lengths:
        with b.step(), b.frame("write.py", 30, "write"):
            with b.frame("model.py", 10, "forward"):
                b.compute("aten::embedding", MS, dims=[[VOCABULARY, WIDTH], [BATCH, length]])
                for layer in range(N_LAYERS):
                    with b.op("aten::linear", dims=[[BATCH, length, WIDTH], [WIDTH, WIDTH]]):
                        product = [[WIDTH], [BATCH * length, WIDTH], [WIDTH, WIDTH]]
                        number = N_LAYERS * length + layer if is_trained else None
                        b.compute("aten::addmm", 5 * MS, dims=product, sequence=number)
            if chooses_of is not None:
                b.compute("aten::argmax", MS, dims=[[BATCH, chooses_of]])
            if appends:
                b.compute("aten::cat", MS, dims=[[[BATCH, length], [BATCH, 1]], []])
            for layer in range(N_LAYERS if is_trained else 0):
                number = N_LAYERS * length + layer
                with b.op("AddmmBackward0", sequence=number, self_ns=MS) as node:
                    node.args |= {"Fwd thread id": 1}  # type: ignore[operator]
            if other_ns:
                b.compute("aten::sort", other_ns, dims=[[7, 7]])

    return b


def test_all_but_the_new_positions_can_be_saved(found: Found) -> None:
    (finding,) = found(program(), RULE)
    assert finding.message == (
        "The loop in write (write.py:30) appends to the input of a model, which computes all of it "
        "again in each call: 100, 101, 102 positions. Operators on it take 11.0 ms per step (92%)."
    )
    assert finding.cost.per_step_ns == pytest.approx((1 - NEW_SHARE) * 11 * MS, rel=0.1)
    assert (finding.cost.basis, finding.severity) == ("estimate", "warning")
    assert [location.file for location in finding.locations] == ["write.py", "model.py"]
    assert "use_cache=True" in finding.fix


def test_calls_within_one_step_count(found: Found) -> None:
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(2):
        with b.step(), b.frame("write.py", 30, "write"):
            for length in range(50, 60):
                for _ in range(3):
                    b.compute("aten::mm", MS, dims=[[length, WIDTH], [WIDTH, WIDTH]])
                b.compute("aten::cat", MS, dims=[[[1, length], [1, 1]], []])
    (finding,) = found(b, RULE)
    assert "from 50 to 59 positions" in finding.message
    assert finding.n == 10


def test_a_token_of_the_inputs_vocabulary_tells_as_much_as_appending(found: Found) -> None:
    (finding,) = found(program(appends=False, chooses_of=VOCABULARY), RULE)
    assert finding.locations[0].file == "write.py"


def test_of_a_recurrent_network_the_state_is_kept(found: Found) -> None:
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for length in LENGTHS:
        with b.step(), b.frame("write.py", 30, "write"):
            state = [[2, 16, 64], [2, 16, 64]]
            b.compute("aten::lstm", 9 * MS, dims=[[16, length, 4], state])
            b.compute("aten::cat", MS, dims=[[[16, length, 4], [16, 1, 4]], []])
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("Keep the state")


def test_on_a_gpu_the_kernels_count(found: Found) -> None:
    b = TraceBuilder(shapes=True)
    for length in LENGTHS:
        with b.step():
            product = [[BATCH * length, WIDTH], [WIDTH, WIDTH]]
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5 * MS, dims=product)
            cat = [[[BATCH, length], [BATCH, 1]], []]
            b.launch("aten::cat", kernel="cat", host_ns=10_000, device_ns=10_000, dims=cat)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == pytest.approx((1 - NEW_SHARE) * 5 * MS, rel=0.02)


def test_a_small_input_costs_no_more_than_its_new_position(found: Found) -> None:
    b = TraceBuilder(shapes=True, device_names=())
    for length in LENGTHS:
        with b.step():
            b.compute("aten::mm", 8_000, dims=[[length, 4], [4, 4]])
            b.compute("aten::cat", 1_000, dims=[[[1, length], [1, 1]], []])
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": (100, 100, 100)},
        {"lengths": (64, 16, 48, 80)},
        {"lengths": (100, 101)},
        {"lengths": (32, 64, 128), "chooses_of": VOCABULARY},
        {"appends": False},
        {"appends": False, "chooses_of": 5},
        {"is_trained": True},
        {"other_ns": 1_000 * MS},
    ],
    ids=[
        "a cache", "random lengths", "two lengths", "buckets", "sorted inputs",
        "sorted and classified", "training on longer and longer inputs", "little time",
    ],
)  # fmt: skip
def test_what_a_cache_does_not_save_is_not_reported(
    found: Found, changes: dict[str, object]
) -> None:
    assert found(program(**changes), RULE) == ()  # type: ignore[arg-type]


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mm", MS)
    assert analyzed(b, RULE).unchecked[0].rule == "KER020"


def test_it_says_how_long_the_steps_of_the_whole_run_are(tmp_path: Path) -> None:
    trace = program().write(tmp_path / "run.pt.trace.json.gz")
    LiveBuilder(n_steps=100, slowing_ns=MS).write(tmp_path / "run.memory.json.gz")
    (finding,) = analyze(trace, select=[RULE]).findings
    assert "and more in longer calls: a step of the whole run takes 70.0 ms" in finding.message
