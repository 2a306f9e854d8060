"""repeated-casts does not report casts with a reason, or by autocast."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.testing import TraceBuilder
from tests.detectors.casting import (
    DOWN_NS,
    UP_NS,
    backward,
    cast,
    down,
    network,
    product,
    relu,
    trained,
    up,
)
from tests.examples.on_a_device import DOWN, UP

RULE = "repeated-casts"
Found = Callable[..., tuple[Finding, ...]]


def test_autocast_casts_within_the_operator_that_wanted_it(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(8):
                with b.op("aten::linear"):
                    down(b)
                    product(b)
                with b.op("aten::gelu"):
                    up(b)
            b.synchronize()
    assert found(b, RULE) == ()


def test_a_librarys_own_casts_are_not_the_programs(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(8):
                with b.op("Torch-Compiled Region: 0/0"):
                    up(b)
                relu(b)
                with b.op("mylib::scale"):
                    down(b)
            b.synchronize()
    assert found(b, RULE) == ()


def test_the_input_and_the_loss_are_cast_once(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(30):
        with b.step():
            down(b)
            product(b)
            up(b)
            b.synchronize()
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    "op",
    [
        "aten::pow",
        "aten::mean",
        "aten::rsqrt",
        "aten::native_layer_norm",
        "aten::_softmax",
        "aten::sum",
        "aten::exp",
        "aten::view_as_complex",
        "aten::bmm",
        "aten::cudnn_convolution",
        "aten::native_batch_norm",
        "aten::cos",
    ],
)
def test_what_is_meant_to_be_in_float32_is_not_reported(found: Found, op: str) -> None:
    assert found(network(8, lambda b: relu(b, op)), RULE) == ()


@pytest.mark.parametrize(
    "op", ["aten::relu", "aten::gelu", "aten::add", "aten::mul", "aten::native_dropout"]
)
def test_what_takes_each_number_alone_needs_no_float32(found: Found, op: str) -> None:
    assert len(found(network(8, lambda b: relu(b, op)), RULE)) == 1


def test_casts_of_one_direction_come_back_from_nowhere(found: Found) -> None:
    for direction in (up, down):
        b = TraceBuilder()
        for _ in range(3):
            with b.step():
                for _ in range(8):
                    direction(b)
                    relu(b)
        assert found(b, RULE) == ()


@pytest.mark.parametrize("kind", ["long", "bool", "double", "c10::complex<float>"])
def test_casts_to_other_types_do_not_count(found: Found, kind: str) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(8):
                cast(b, UP.replace("lambda(float)", f"lambda({kind})"), UP_NS)
                relu(b)
                down(b)
    assert found(b, RULE) == ()


def test_other_copies_are_not_casts(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for _ in range(8):
                # What is copied into a tensor that is there, as to master weights.
                cast(b, UP, UP_NS, asked="aten::copy_")
                cast(b, DOWN, DOWN_NS, asked="aten::copy_")
                # clone(), contiguous(), to(memory_format=...), to another place on the device.
                cast(b, UP.replace("LoadWithCast", "LoadWithoutCast"), UP_NS, asked="aten::clone")
                cast(b, UP.replace("LoadWithCast", "LoadWithoutCast"), UP_NS)
                with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
                    b.copy("DtoD (Device -> Device)", 4_096, 9_000, blocking=False)
    assert found(b, RULE) == ()


def test_gradients_of_autocasts_casts_are_its_own_too(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            trained(b, 8, asked="aten::linear")
            b.synchronize()
    assert found(b, RULE) == ()


def test_an_optimizer_casts_each_parameter_without_gradients(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            trained(b, 1)
            for _ in range(20):
                up(b)
                relu(b, "aten::add_")
                down(b)
            b.synchronize()
    assert found(b, RULE) == ()


def test_a_function_of_ones_own_for_autograd_is_not_seen(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            trained(b, 8, asked="CastAndMultiply")
    assert found(b, RULE) == ()


def test_a_backward_pass_between_ends_what_went_up(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            for number in range(1, 9):
                down(b, sequence=number)
                product(b)
                up(b, sequence=number)
                with backward(b, "AddmmBackward0", number):
                    product(b)
            b.synchronize()
    assert found(b, RULE) == ()


def test_a_step_does_not_come_back_in_the_next_one(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(12):
        with b.step():
            down(b)
            product(b)
            up(b)
            relu(b)
    assert found(b, RULE) == ()


def test_two_threads_do_not_come_back_for_each_other(found: Found) -> None:
    b = TraceBuilder()
    with b.step():
        for _ in range(8):
            up(b)
            with b.thread(3000):
                down(b, device=1)
        b.synchronize()
    assert found(b, RULE, min_round_trips_count=1) == ()


@pytest.mark.parametrize(("same_thread", "is_found"), [(True, False), (False, True)])
def test_what_another_thread_sums_up_meanwhile_needs_nothing_here(
    found: Found,
    same_thread: bool,  # noqa: FBT001
    is_found: bool,  # noqa: FBT001
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.thread(3000):
            for _ in range(8):
                up(b)
                with b.thread(3000 if same_thread else 4000):
                    b.compute("aten::sum", 1_000)
                down(b)
            b.synchronize()
    assert bool(found(b, RULE)) == is_found


def test_only_operators_need_float32_whatever_else_is_called(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step():
            for _ in range(8):
                up(b)
                with b.frame("softmax_norm.py", 3, "mean_of_sums"), b.module("LayerNorm"):
                    relu(b)
                down(b)
            b.synchronize()
    assert len(found(b, RULE)) == 1
