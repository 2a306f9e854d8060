"""repeated-casts finds tensors that are cast to float32 and back in every layer."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from profkit.testing.trace_vendors import convert_to_vendor
from tests.catalogue.random_programs import briefly
from tests.detectors.casting import (
    DOWN_NS,
    PRODUCT_NS,
    RELU_NS,
    UP_NS,
    cast,
    down,
    layers,
    network,
    relu,
    trained,
    up,
)
from tests.examples.on_a_device import BF16, DOWN

RULE = "repeated-casts"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
PLAYED = {"up": up, "down": down, "relu": relu, "sum": lambda b: relu(b, "aten::sum")}


def test_it_costs_the_casts_that_come_back_for_nothing(found: Found) -> None:
    (finding,) = found(network(), RULE)
    # Of four layers three go up and come back; the first came down and the last goes to the loss.
    per_step_ns = 3 * (UP_NS + DOWN_NS)

    busy_ns = 4 * (UP_NS + DOWN_NS + PRODUCT_NS + RELU_NS) + RELU_NS
    assert (finding.cost.ns, finding.cost.per_step_ns) == (3 * per_step_ns, per_step_ns)
    assert finding.cost.basis == "replay"
    assert (finding.n, finding.severity, finding.confidence) == (9, "warning", "high")
    assert finding.evidence["n_casts"] == 18
    assert finding.evidence["busy_share"] == round(per_step_ns / busy_ns, 4)
    assert finding.message == (
        "Tensors are cast to float32 and back to bfloat16 in forward (net.py:8), 3 times per step, "
        "and nothing in between needs float32. The casts take 150 µs per step (23% of the GPU's "
        "busy time)."
    )
    assert finding.fix.startswith("Remove `.bfloat16()` and `.float()` from the layers and run")
    assert "dtype=torch.bfloat16" in finding.fix
    assert sum(end - start for start, end in finding.spans) == finding.cost.ns


def test_the_costliest_line_comes_first(found: Found) -> None:
    (finding,) = found(network(), RULE)
    places = [(place.file, place.line) for place in finding.locations]
    assert places == [("net.py", 8), ("net.py", 9)]


@pytest.mark.parametrize(("n", "is_found"), [(3, False), (4, True)])
def test_two_islands_of_float32_are_not_every_layer(
    found: Found,
    n: int,
    is_found: bool,  # noqa: FBT001
) -> None:
    assert bool(found(network(n), RULE)) == is_found


def test_gradients_of_casts_belong_to_the_line_of_the_casts(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        with b.step():
            trained(b, 4)
            b.synchronize()
    (finding,) = found(b, RULE)
    # Three up and three down, and the gradients of each, which go the other way.
    assert finding.cost.per_step_ns == 2 * 3 * (UP_NS + DOWN_NS)
    assert finding.n == 2 * 3
    assert [(place.file, place.line) for place in finding.locations] == [("net.py", 8)]


def test_replicas_on_two_devices_at_once_are_counted_once(found: Found) -> None:
    b = TraceBuilder(device_names=("NVIDIA A100", "NVIDIA A100"))
    for _ in range(3):
        with b.step():
            for _ in range(4):
                for device in (0, 1):
                    with b.thread(3000 + device):
                        up(b, device=device)
                        relu(b)
                        down(b, device=device)
            b.synchronize()
            b.synchronize(device=1)

    (finding,) = found(b, RULE)
    assert finding.n == 3 * 2 * 4
    assert finding.evidence["n_casts"] == 3 * 2 * 8
    assert finding.cost.ns is not None
    assert finding.cost.ns < 3 * 2 * 4 * (UP_NS + DOWN_NS)


@pytest.mark.parametrize(("other_ns", "n"), [(2_850_000, 1), (2_851_000, 0)])
def test_a_twentieth_of_the_busy_time_is_the_threshold(found: Found, other_ns: int, n: int) -> None:
    b = TraceBuilder()
    with b.step():
        for _ in range(3):
            up(b)
            b.compute("aten::relu", 1_000)
            down(b)
        b.launch("aten::addmm", kernel=BF16, host_ns=5_000, device_ns=other_ns)
        b.synchronize()
    assert len(found(b, RULE)) == n


def test_casts_that_hardly_shorten_a_step_are_a_note(found: Found) -> None:
    b = network()
    with b.step():
        b.advance(100_000_000)
    (finding,) = found(b, RULE, min_round_trips_count=2)
    assert finding.severity == "note"


def test_casts_outside_of_steps_do_not_count(found: Found) -> None:
    b = network()
    layers(b, 20)
    (finding,) = found(b, RULE)
    assert (finding.n, finding.cost.ns) == (9, 3 * 3 * (UP_NS + DOWN_NS))


def test_the_last_step_lasts_until_its_casts_have_run(found: Found) -> None:
    b = TraceBuilder()
    with b.step() as event:
        for _ in range(8):
            up(b)
            down(b)
    # The device lags behind: from the first launch on it does nothing but cast. Without the casts
    # neither their launches nor their kernels take time.
    (finding,) = found(b, RULE)
    assert event.dur_ns is not None
    assert event.dur_ns == 16 * 4_000
    assert finding.cost.ns == 4_000 + 8 * (UP_NS + DOWN_NS)
    assert sum(end - start for start, end in finding.spans) == event.dur_ns - 4_000


def test_without_stacks_the_operator_is_named(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(4):
                up(b)
                relu(b)
                cast(b, DOWN, DOWN_NS, asked="aten::type_as")
            b.synchronize()
    (finding,) = found(b, RULE)
    assert {place.op for place in finding.locations} == {"aten::to", "aten::type_as"}
    assert finding.confidence == "medium"
    assert finding.fix.startswith("Remove the casts from the layers")


def test_half_is_named_where_it_is_half(found: Found) -> None:
    b = TraceBuilder()
    with b.step():
        for _ in range(4):
            up(b)
            relu(b)
            cast(b, DOWN.replace("bfloat16_copy", "float16_copy"), DOWN_NS)
        b.synchronize()
    (finding,) = found(b, RULE)
    assert "back to float16" in finding.message
    assert "dtype=torch.float16" in finding.fix


def test_on_rocm_kernels_have_the_same_names(found: Found) -> None:
    assert len(found(network(runtime="hip"), RULE)) == 1


def test_on_other_devices_it_is_skipped(analyzed: Analyzed) -> None:
    b = network()
    b.events = [convert_to_vendor(event, "xpu") for event in b.events]
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.reason.startswith("No CUDA or HIP calls were recorded")


def test_without_steps_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    layers(b, 8)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.reason == "No steps were recorded."


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.reason == "No kernels or copies of a GPU were recorded."


def count_by_hand(step: list[str]) -> tuple[int, list[str]]:
    """How often a step goes up and comes back for nothing, and the step without these casts."""
    n, above = 0, list[int]()
    remaining: list[str] = list(step)
    is_used = comes_back = False

    for number, direction in enumerate(step):
        if direction == "up":
            above.append(number)
            comes_back = False
        elif direction == "sum":
            is_used = is_used or bool(above)
        elif direction == "down":
            if above and not is_used:
                n += 1
                for cast_up in above:
                    remaining[cast_up] = ""
                comes_back = True
            if comes_back:
                remaining[number] = ""
            above, is_used = [], False

    return n, remaining


def length_ns(step: list[str]) -> int:
    """Return the length of a step whose host launches in turn and waits for the last kernel."""
    host_ns = device_ns = 0
    for direction in filter(None, step):
        host_ns += 4_000 if direction in ("up", "down") else 5_000
        device_ns = max(host_ns, device_ns) + {"up": UP_NS, "down": DOWN_NS}.get(direction, RELU_NS)
    return max(host_ns, device_ns)


@briefly
@given(st.lists(st.lists(st.sampled_from(sorted(PLAYED)), max_size=14), min_size=1, max_size=3))
def test_any_order_of_casts_is_counted_as_by_hand(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[str]]
) -> None:
    b = TraceBuilder()
    for step in steps:
        with b.step():
            for direction in step:
                PLAYED[direction](b)  # type: ignore[operator]
            b.synchronize()
    b.launch("aten::relu", kernel="relu", host_ns=5_000, device_ns=1_000)
    path = b.write(tmp_path_factory.mktemp("any") / "t.json")
    changed = {RULE: {"min_round_trips_count": 0.0, "min_busy_share": 0.0}}
    findings = analyze(path, select=[RULE], thresholds=changed, strict=True).findings
    expected = [count_by_hand(step) for step in steps]
    n = sum(n_casts for n_casts, _ in expected)

    saved_ns = sum(map(length_ns, steps)) - sum(length_ns(remaining) for _, remaining in expected)
    assert bool(findings) == (n > 0)
    for finding in findings:
        assert finding.n == n
        # The switch between two kernels takes 1 µs where the recording does not show it.
        assert finding.cost.ns == pytest.approx(saved_ns, abs=1_000 * sum(map(len, steps)))
