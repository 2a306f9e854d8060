"""rebuilt-model finds models that are built for each input."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo, SampledFunction, SampledTime
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "rebuilt-model"
Found = Callable[..., tuple[Finding, ...]]
MS = 1_000_000


def answer(b: TraceBuilder, n_weights: int, initialize: str = "aten::uniform_") -> None:
    """Build a model, load its weights, and use it."""
    with b.frame("serve.py", 12, "load_model"):
        for _ in range(n_weights):
            b.compute(initialize, MS)
            b.advance(MS // 4)
        b.compute("aten::copy_", MS)
    with b.frame("serve.py", 20, "predict"):
        b.compute("aten::linear", MS)


def serve(n: int, n_weights: int = 4, *, stacks: bool = True, **words: str) -> TraceBuilder:
    b = TraceBuilder(stacks=stacks, device_names=())
    for _ in range(n):
        with b.step():
            answer(b, n_weights, **words)
    return b


def test_it_names_the_line_and_costs_what_the_weights_take(found: Found) -> None:
    (finding,) = found(serve(3), RULE)
    assert finding.message == (
        "The program builds a model in load_model (serve.py:12) 3 times, and uses it in between. "
        "To initialize its weights alone takes 4.75 ms per step (68%)."
    )
    assert (finding.cost.per_step_ns, finding.cost.basis) == (19 * MS // 4, "estimate")
    assert finding.fix.startswith("Build the model and load its weights once")


def training(
    n_steps: int, weight: tuple[int, ...] = (512, 256), bias: tuple[int, ...] = (512,)
) -> TraceBuilder:
    """Train a model that fills two tensors with random numbers in each forward pass."""
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(n_steps):
        with b.step():
            with b.frame("net.py", 13, "forward"):
                for shape in (weight, bias):
                    b.compute("aten::uniform_", MS, dims=[[*shape], [], [], []])
            with b.frame("net.py", 14, "forward"):
                b.compute("aten::linear", 6 * MS)
    return b


def test_a_layer_that_forward_creates_is_named(found: Found) -> None:
    (finding,) = found(training(3), RULE)
    assert finding.message == (
        "The program builds a layer in forward (net.py:13) 3 times, and uses it in between. "
        "To initialize its weights alone takes 2.00 ms per step (25%)."
    )
    assert finding.fix.startswith("Create the layer once, in the `__init__`")


@pytest.mark.parametrize(
    ("weight", "bias"), [((512, 256), (512, 256)), ((512, 256), (256,)), ((512,), (512,))]
)
def test_two_tensors_of_noise_are_no_layer(
    found: Found, weight: tuple[int, ...], bias: tuple[int, ...]
) -> None:
    assert found(training(3, weight, bias), RULE) == ()


def test_without_steps_or_lines_samples_of_the_run_name_the_function(found: Found) -> None:
    functions = [
        SampledFunction(("serve.py", 30, "main"), 50, 500 * MS, "numpy"),
        SampledFunction(("serve.py", 12, "load_model"), 40, 400 * MS, "torch", part="build"),
    ]
    sampled = SampledTime(10 * MS, 90, 900 * MS, functions)
    capture = CaptureInfo(version="0", name="serve", steps="whole", sampled=sampled)
    b = TraceBuilder(device_names=(), capture=capture)
    for _ in range(4):
        answer(b, 4)
    (finding,) = found(b, RULE)
    assert finding.locations[0].function == "load_model"
    assert (finding.n, finding.cost.ns) == (42, 19 * MS)


def test_models_that_are_built_one_after_the_other_are_not_rebuilt(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(40):
        b.compute("aten::uniform_", MS)
    for _ in range(3):
        with b.step():
            b.compute("aten::linear", MS)
    assert found(b, RULE) == ()


@pytest.mark.parametrize(("n", "n_weights"), [(2, 4), (5, 3)])
def test_a_second_model_and_noise_are_not_rebuilt_models(
    found: Found, n: int, n_weights: int
) -> None:
    assert found(serve(n, n_weights), RULE) == ()


def test_random_tensors_that_are_new_are_not_weights(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(5):
        with b.step():
            for _ in range(4):
                with b.op("aten::randn"):
                    b.compute("aten::normal_", MS)
            b.compute("aten::linear", MS)
    assert found(b, RULE) == ()


def test_it_is_silent_where_building_takes_little(found: Found) -> None:
    b = serve(3)
    b.compute("aten::linear", 1_000 * MS)
    with b.step():
        b.compute("aten::linear", 1_000 * MS)
    assert found(b, RULE) == ()


def test_it_is_skipped_without_operators(
    analyzed: Callable[..., Report], device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "CPU004"
