"""device-to-device-copies finds tensors that move between GPUs, by line and pair of devices."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "device-to-device-copies"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MIB = 1 << 20


def training(
    *pairs: tuple[int, int], copy_ns: int = 400_000, n_steps: int = 3, around: str = "forward"
) -> TraceBuilder:
    """Steps of some copies of 4 MiB at line 30, after each of which the host waits."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) * 3)
    for _ in range(n_steps):
        with b.step(), b.frame("model.py", 30, "forward"), b.annotation(around):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
            for source, target in pairs:
                b.peer_copy(4 * MIB, copy_ns, source=source, target=target)
                b.synchronize(device=source)
    return b


def test_it_costs_the_time_of_the_copies_and_names_the_pairs(found: Found) -> None:
    (finding,) = found(training((0, 1), (0, 1), (1, 2)), RULE)
    assert finding.cost.per_step_ns == 3 * 400_000
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 9)
    assert finding.evidence["bytes"] == 3 * 3 * 4 * MIB
    (where,) = finding.locations
    assert (where.file, where.line) == ("model.py", 30)
    # 4 MiB in 400 µs.
    assert finding.message.startswith(
        "Tensors are copied between GPUs in forward (model.py:30), 3 times per step: cuda:0 to "
        "cuda:1 8.00 MiB per step at 10.5 GB/s, cuda:1 to cuda:2 4.00 MiB per step at 10.5 GB/s. "
        "The copies take 1.20 ms per step"
    )


def test_copies_within_a_device_are_not_reported(found: Found) -> None:
    assert found(training((0, 0)), RULE) == ()


def test_copies_to_the_host_are_not_reported(found: Found) -> None:
    b = training()
    for _ in range(3):
        with b.step():
            b.to_host(4 * MIB, 400_000)
    assert found(b, RULE) == ()


def test_a_copy_before_the_loop_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(9):
        b.peer_copy(4 * MIB, 400_000)
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
    assert found(b, RULE) == ()


def test_copies_that_take_little_are_not_reported(found: Found) -> None:
    assert found(training((0, 1), copy_ns=500), RULE) == ()


def test_a_copy_that_is_hidden_is_a_note(found: Found) -> None:
    b = TraceBuilder(device_names=("NVIDIA H200",) * 2)
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=900_000, device=1)
            b.peer_copy(4 * MIB, 100_000)
            b.synchronize(device=1)
    (finding,) = found(b, RULE)
    assert (finding.severity, finding.cost.ns) == ("note", 0)


def test_data_parallel_reports_its_own_copies(found: Found) -> None:
    assert found(training((0, 1), around="DataParallel.forward"), RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "DAT005"
