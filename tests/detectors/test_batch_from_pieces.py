"""batch-from-pieces finds batches that are made from many small tensors or lists."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo, SampledFunction, SampledTime
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "batch-from-pieces"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS, US = 1_000_000, 1_000
N_STEPS = 3


def start(capture: CaptureInfo | None = None) -> TraceBuilder:
    return TraceBuilder(stacks=capture is None, shapes=True, device_names=(), capture=capture)


def join(
    b: TraceBuilder, n: int, *, name: str = "aten::stack", sequence: int | None = None
) -> None:
    """Join tensors without dimensions, of which each becomes a vector first, in 2 µs."""
    with b.op(name, dims=[[], []], sequence=sequence):
        for _ in range(n):
            b.compute("aten::unsqueeze", 2 * US, dims=[[], []])


def replay(
    n: int = 500, *, n_made: int = 2, made_by: str = "aten::mul", other_ns: int = 0
) -> TraceBuilder:
    """Steps that join stored tensors.

    Args:
        n: Tensors of a batch.
        n_made: Operators of the same step before them.
        made_by: Their name.
    """
    b = start()
    for _ in range(N_STEPS):
        with b.step(), b.frame("dqn.py", 48, "sample"):
            for _ in range(n_made):
                b.compute(made_by, US)
            join(b, n)
            b.compute("aten::mm", other_ns or MS)

    return b


def test_stored_tensors_cost_what_joining_them_takes_without_the_recording(found: Found) -> None:
    (finding,) = found(replay(), RULE)
    assert finding.message == (
        "The program in sample (dqn.py:48) joins 500 stored tensors once per step. This takes "
        "1.00 ms per step (50%), with the time that recording each piece takes."
    )
    assert finding.cost.per_step_ns == pytest.approx(MS / 4 - 5 * US)
    assert finding.cost.basis == "estimate"
    assert "`buffer[index]`" in finding.fix


@pytest.mark.parametrize(
    "changes",
    [{"n": 40}, {"n_made": 600}, {"n_made": 1, "made_by": "aten::unbind"}, {"other_ns": 90 * MS}],
    ids=["few tensors", "outputs of a loop", "parts of one tensor", "little time"],
)
def test_other_joins_are_not_reported(found: Found, changes: dict[str, object]) -> None:
    assert found(replay(**changes), RULE) == ()  # type: ignore[arg-type]


def test_a_loaders_batches_are_its_own_matter(found: Found) -> None:
    b = start()
    for _ in range(N_STEPS):
        with b.step():
            with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                join(b, 500)
            b.compute("aten::mm", MS)
    assert found(b, RULE) == ()


def test_losses_that_pass_back_are_not_stored(found: Found) -> None:
    b = start()
    for number in range(N_STEPS):
        with b.step():
            join(b, 500, sequence=number)
            with b.op("StackBackward0", sequence=number, self_ns=US) as node:
                node.args |= {"Fwd thread id": 1}  # type: ignore[operator]
    assert found(b, RULE) == ()


def test_arrays_that_become_tensors_one_by_one_are_converted_at_once(found: Found) -> None:
    b = start()
    for _ in range(N_STEPS):
        with b.step(), b.frame("dqn.py", 50, "sample"):
            for _ in range(100):
                b.compute("aten::lift_fresh", US, dims=[[4]])
                b.compute("aten::to", 9 * US, dims=[[4]])
            b.compute("aten::stack", 100 * US, dims=[[], []])
            b.compute("aten::mm", MS)
    (finding,) = found(b, RULE)
    assert "makes 100 tensors of Python's data, one after the other," in finding.message
    assert finding.cost.per_step_ns == pytest.approx(550 * US - 5 * US - 100 * 120, rel=0.01)


def test_rows_taken_one_by_one_are_taken_by_an_index(found: Found) -> None:
    b = start()
    for _ in range(N_STEPS):
        with b.step(), b.frame("dqn.py", 50, "sample"):
            for _ in range(100):
                b.compute("aten::select", 4 * US, dims=[[5000, 4], [], []])
            b.compute("aten::stack", 100 * US, dims=[[], []])
    (finding,) = found(b, RULE)
    assert finding.fix.endswith("`tensor[index]`.")


def test_rows_that_are_not_joined_are_what_a_loop_needs(found: Found) -> None:
    b = start()
    for _ in range(N_STEPS):
        with b.step():
            for _ in range(100):
                b.compute("aten::select", 4 * US, dims=[[5000, 4], [], []])
            b.compute("aten::mm", US)
    assert found(b, RULE) == ()


def listed(shape: list[int], gaps_ns: tuple[int, ...]) -> TraceBuilder:
    """Steps with a call of ``torch.tensor``, which takes some time for a list of a shape."""
    b = start()
    for gap_ns in gaps_ns:
        with b.step(), b.frame("dqn.py", 51, "sample"):
            b.compute("aten::empty", US, dims=[[]])
            b.advance(gap_ns)
            b.compute("aten::to", US, dims=[shape])
            b.compute("aten::lift_fresh", US, dims=[shape])
            b.compute("aten::mm", MS)
    return b


def test_a_list_of_arrays_is_joined_by_numpy(found: Found) -> None:
    (finding,) = found(listed([256, 64], (2 * MS,) * 3), RULE)
    assert "converts a list of 256 arrays or lists number by number" in finding.message
    kept_ns = 5 * US + 256 * 120 + 256 * 64 * 25
    assert finding.cost.per_step_ns == pytest.approx(2 * MS - kept_ns, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "gaps_ns"),
    [
        ([1000], (MS, MS, MS)),
        ([8, 64], (MS, MS, MS)),
        ([256, 64], (10 * US, 10 * US, 9 * MS)),
    ],
    ids=["single numbers", "few rows", "an interruption"],
)
def test_other_lists_are_not_reported(
    found: Found, shape: list[int], gaps_ns: tuple[int, ...]
) -> None:
    assert found(listed(shape, gaps_ns), RULE) == ()


def test_without_lines_the_sampled_function_is_named(found: Found) -> None:
    sample = SampledFunction(("dqn.py", 48, "sample"), 60, 600 * MS)
    loop = SampledFunction(("dqn.py", 90, "main"), 40, 400 * MS, callee="loss.backward")
    sampled = SampledTime(10 * MS, 100, 1_000 * MS, [sample, loop], 100, 1_000 * MS)
    b = start(CaptureInfo(version="0", name="train", steps="optimizer", sampled=sampled))
    for _ in range(N_STEPS):
        with b.step():
            join(b, 500)
            b.compute("aten::mm", MS)
    (finding,) = found(b, RULE)
    assert [location.place for location in finding.locations] == ["sample (dqn.py:48)"]


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mm", MS)
    assert analyzed(b, RULE).unchecked[0].rule == "DAT007"
