"""double-precision finds products in float64 where float32 is faster."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "double-precision"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS = 1_000_000


def on_cpu(
    operator: str = "aten::addmm", kind: str = "double", *, dur_ns: int = 8 * MS
) -> TraceBuilder:
    """Three steps of 10 ms with a product at line 10."""
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            with b.op(operator, self_ns=dur_ns, dims=[[256, 64]], types=[kind]):
                pass
            b.compute("aten::relu", 10 * MS - dur_ns)
    return b


def build_on_gpu(capability: tuple[int, int], *, share: float = 0.8) -> TraceBuilder:
    """Three steps of 10 ms, in which a kernel of a product takes a share."""
    major, minor = capability
    device = {"id": 0, "name": "NVIDIA", "computeMajor": major, "computeMinor": minor}
    b = TraceBuilder(stacks=True, shapes=True, head={"deviceProperties": [device]})

    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            b.launch(
                "aten::mm",
                kernel="volta_dgemm_128x64_nn",
                host_ns=10_000,
                device_ns=round(share * 10 * MS),
                dims=[[256, 64], [64, 256]],
                types=["double", "double"],
            )
            b.launch(
                "aten::relu", kernel="relu", host_ns=10_000, device_ns=round((1 - share) * 10 * MS)
            )
            b.synchronize()

    return b


@pytest.mark.parametrize("operator", ["aten::mm", "aten::convolution", "aten::bmm"])
def test_on_a_cpu_it_is_a_note_that_float32_takes_half_as_long(found: Found, operator: str) -> None:
    (finding,) = found(on_cpu(operator), RULE)
    assert finding.message == (
        "Products and convolutions in forward (train.py:10) run once per step in float64, which "
        "takes 8.00 ms per step (80%)."
    )
    assert (finding.severity, finding.cost.basis) == ("note", "estimate")
    assert finding.cost.per_step_ns == 4 * MS
    assert "torch.from_numpy(x).float()" in finding.fix


@pytest.mark.parametrize(
    ("name", "kind", "other_ns", "saved_ns"),
    [
        ("aten::relu", "double", 1 * MS, MS // 2),
        ("aten::relu", "float", 1 * MS, 0),
        ("aten::relu", "double", 9_000, 0),
        ("aten::copy_", "double", 1 * MS, 0),  # of the data, into another type
    ],
)
def test_other_operators_of_the_type_are_half_as_long_too(
    found: Found, name: str, kind: str, other_ns: int, saved_ns: int
) -> None:
    b = TraceBuilder(shapes=True, device_names=())
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 4 * MS, dims=[[256, 64]], types=["double"])
            b.compute(name, other_ns, dims=[[256, 64]], types=[kind])
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 2 * MS + saved_ns


def test_complex_numbers_of_two_doubles_count(found: Found) -> None:
    assert len(found(on_cpu(kind="c10::complex<double>"), RULE)) == 1


def test_an_operator_within_another_counts_once(found: Found) -> None:
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(3):
        with (
            b.step(),
            b.op("aten::convolution", dims=[[8, 3]], types=["double"]),
            b.op("aten::addmm", self_ns=10 * MS, dims=[[8, 3]], types=["double"]),
        ):
            pass
    (finding,) = found(b, RULE)
    assert finding.n == 3
    assert finding.cost.per_step_ns == 5 * MS


@pytest.mark.parametrize(("capability", "ratio"), [((8, 9), 64), ((7, 5), 32)])
def test_a_gpu_with_few_units_for_it_takes_so_many_times_as_long(
    found: Found, capability: tuple[int, int], ratio: int
) -> None:
    (finding,) = found(build_on_gpu(capability), RULE)
    assert finding.severity == "warning"
    saved_ns = 8 * MS * (1 - 1 / ratio)
    assert finding.cost.per_step_ns == pytest.approx(saved_ns, rel=0.01)
    assert finding.evidence["ratio"] == 1 / ratio


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_gpus_of_data_centers_have_units_for_it(found: Found, capability: tuple[int, int]) -> None:
    assert found(build_on_gpu(capability), RULE) == ()


@pytest.mark.parametrize(
    "b",
    [
        on_cpu(kind="float"),
        on_cpu("aten::add"),
        on_cpu(dur_ns=MS // 2),
        build_on_gpu((8, 9), share=0.04),
    ],
    ids=["float32", "no product", "short", "short on a GPU"],
)
def test_other_or_short_work_is_not_reported(found: Found, b: TraceBuilder) -> None:
    assert found(b, RULE) == ()


def test_without_types_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mm", MS)
    assert analyzed(b, RULE).unchecked[0].rule == "KER017"
