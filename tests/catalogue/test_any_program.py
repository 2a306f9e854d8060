"""Whatever a program does, no rule crashes and no finding claims more than there is."""

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.testing import TraceBuilder

ACTIONS: tuple[Callable[[TraceBuilder], object], ...] = (
    lambda b: b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=3_000),
    lambda b: b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=700_000, stream=13),
    lambda b: b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=90_000, device=1),
    lambda b: b.item(),
    lambda b: b.item(on_device=False),
    lambda b: b.to_host(4_096, 3_000),
    lambda b: b.to_device(1 << 22, 90_000),
    lambda b: b.to_device(32, 1_000, pinned=True),
    lambda b: b.compute("aten::zeros", 2_000),
    lambda b: b.synchronize(),
    lambda b: b.synchronize("EventSynchronize"),
    lambda b: b.load(80_000),
    lambda b: b.call("Malloc", 70_000),
    lambda b: b.call("LaunchKernel", 4_000),
    lambda b: b.kernel("orphan", 5_000),
    lambda b: b.graph_launch([("a", 2_000), ("b", 1_000)]),
    lambda b: b.alloc(1 << 20),
    lambda b: b.alloc(1 << 12, device=None),
    lambda b: b.free_earlier(1 << 20),
    lambda b: b.overhead("Buffer Flush", 30_000),
    lambda b: b.advance(250_000),
)

programs = st.lists(st.lists(st.integers(0, len(ACTIONS) - 1), max_size=12), min_size=1, max_size=5)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(program=programs, stacks=st.booleans(), steps=st.booleans(), repeat=st.integers(1, 3))
def test_any_program_is_judged_within_its_bounds(
    tmp_path: Path,
    program: list[list[int]],
    stacks: bool,  # noqa: FBT001
    steps: bool,  # noqa: FBT001
    repeat: int,
) -> None:
    b = TraceBuilder(stacks=stacks, memory=True)
    for body in program * repeat:
        with b.step() if steps else b.annotation("region"), b.frame("train.py", 3, "main"):
            for number in body:
                ACTIONS[number](b)
    report = analyze(b.write(tmp_path / "t.json"), strict=True)
    window_ns = report.summary.window_ns
    for finding in (*report.findings, *report.health):
        assert 0 <= (finding.cost.ns or 0) <= window_ns
        assert (finding.cost.bytes or 0) >= 0
        claimed = 0
        for start, end in finding.claims:
            assert 0 <= start < end <= window_ns
            claimed += end - start
        assert claimed == (finding.cost.ns or 0)
        assert finding.n >= 1
        if finding.cost.basis == "measured" and not finding.cost.ns:
            assert finding.severity == "note" or finding.cost.bytes or finding.rule[:3] == "PRF"
    assert report.summary.claimed_ns <= window_ns
