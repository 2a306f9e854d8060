"""Autograd reference cycles are found if nothing else holds a tensor, and break as predicted."""

import gc
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profkit.capture.memory.holders.garbage import find_garbage
from profkit.capture.memory.holders.holder_chains import Holding, find_holdings
from tests.capture.memory.saved_tensors import needs_saved_tensors

GRADIENT = ("Parameter.grad", "Tensor.grad_fn", "AccumulateGrad", "Parameter.grad")
AMPLE_S = 60.0
KEPT: list[object] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    gc.collect()
    yield
    KEPT.clear()
    for parameter in _parameters():
        parameter.grad = None
    gc.collect()


def holding(reference: "weakref.ref[Any]", budget_s: float = AMPLE_S) -> Holding:
    (holding,) = find_holdings([reference()], budget_s=budget_s)
    return holding


def with_graphed_gradient(size: int = 4) -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself warns about the cycle
        parameter.exp().sum().backward(create_graph=True)
    return parameter


@pytest.mark.slow
def test_a_gradient_whose_graph_leads_to_its_parameter_is_never_collected() -> None:
    parameter = weakref.ref(with_graphed_gradient())
    gc.collect()
    held_by = holding(parameter)
    assert held_by.chains == ()
    assert held_by.cycle is not None
    assert held_by.cycle.names == GRADIENT
    assert find_garbage() == []
    assert held_by.cycle.closed_by is parameter().grad  # type: ignore[union-attr]
    del held_by
    gc.collect()
    assert parameter() is not None


def test_clearing_the_gradient_breaks_the_cycle() -> None:
    parameter = weakref.ref(with_graphed_gradient())
    assert holding(parameter).cycle is not None
    parameter().grad = None  # type: ignore[union-attr]
    assert parameter() is None


@needs_saved_tensors
def test_tensors_saved_by_the_graph_of_a_cycle_are_kept_by_it() -> None:
    def leave() -> "weakref.ref[Tensor]":
        data = torch.ones(4)
        parameter = nn.Parameter(torch.ones(4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (parameter * data).square().sum().backward(create_graph=True)
        return weakref.ref(data)

    data = leave()
    held_by = holding(data)
    assert held_by.chains == ()
    assert held_by.cycle is not None
    assert held_by.cycle.names == GRADIENT
    parameter = weakref.ref(_parameters()[0])
    parameter().grad = None  # type: ignore[union-attr]
    del held_by
    assert data() is None
    assert parameter() is None


@pytest.mark.usefixtures("all_objects")
def test_an_object_with_a_holder_has_no_cycle() -> None:
    KEPT.append(with_graphed_gradient())
    held_by = holding(weakref.ref(KEPT[0]))
    assert "".join(held_by.chains[0].parts).endswith("KEPT[0]")
    assert held_by.cycle is None


class Squared(torch.autograd.Function):
    """Squares."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401, ARG004
        return x.square()


@pytest.mark.slow
def test_a_tensor_computed_from_an_output_and_stored_on_its_ctx_is_a_cycle() -> None:
    output = Squared.apply(torch.ones(4, requires_grad=True))
    output.grad_fn.later = output.exp()
    later = weakref.ref(output.grad_fn.later)
    del output
    gc.collect()
    held_by = holding(later)
    assert held_by.chains == ()
    assert held_by.cycle is not None
    assert held_by.cycle.names == ("SquaredBackward", "Tensor.grad_fn", "SquaredBackward")
    assert find_garbage() == []
    assert held_by.cycle.closed_by is later()
    del held_by
    del later().grad_fn.next_functions[0][0].later  # type: ignore[union-attr]
    assert later() is None


class Node:
    """Refers to itself, visibly to Python's garbage collector."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.me = self


def test_a_python_cycle_is_not_an_autograd_cycle() -> None:
    values = weakref.ref(Node(torch.ones(4)).values)
    assert holding(values) == Holding((), None)


def test_a_search_that_was_cut_short_returns_no_cycle() -> None:
    parameter = weakref.ref(with_graphed_gradient())
    assert holding(parameter, budget_s=0.0) == Holding((), None)


def _parameters() -> list[nn.Parameter]:
    return [
        parameter
        for parameter in gc.get_objects()
        if type(parameter) is nn.Parameter
        and parameter.grad is not None
        and parameter.grad.grad_fn is not None
    ]
