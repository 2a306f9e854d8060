"""Calls of modules are listened to without leaving a trace in them."""

import copy
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.modules import module as torch_module

from profkit.capture.process import module_calls
from profkit.capture.process.module_calls import ModuleCalls

DYNAMO = "torch.dynamo_of_this_test"
HOOKS = torch_module._global_forward_pre_hooks


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        return result


class OwnCall(Net):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().__call__(x)
        return result


@pytest.fixture
def called() -> list[object]:
    return []


@pytest.fixture
def calls(called: list[object], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleCalls]:
    monkeypatch.setattr(module_calls, "_DYNAMO", DYNAMO)  # other tests may import the real one
    n_hooks = len(HOOKS)
    listening = ModuleCalls(called.append)
    listening.listen()
    yield listening
    listening.stop()
    assert len(HOOKS) == n_hooks
    assert listening not in sys.meta_path
    assert "__call__" not in vars(Net)


def test_all_modules_are_listened_to_and_then_one_class(
    calls: ModuleCalls, called: list[object]
) -> None:
    net, other_net, n_hooks, x = Net(), Net(), len(HOOKS), torch.ones(2)
    net(x)
    assert called == [net, net.inner]

    filters = list(warnings.filters)
    calls.narrow(net)
    assert len(HOOKS) == n_hooks - 1
    assert filters[1:] == list(warnings.filters)

    called.clear()
    assert torch.equal(net(x), x)
    net(x=x)
    other_net(x)
    torch.nn.ReLU()(x)
    assert called == [net, net, other_net]

    calls.stop()
    net(x)
    assert called == [net, net, other_net]
    assert Net.__call__ is torch.nn.Module.__call__


def test_a_module_of_that_class_is_copied_traced_and_scripted_as_ever(calls: ModuleCalls) -> None:
    net, x = Net(), torch.ones(2)
    calls.narrow(net)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):  # noqa: S301
        assert torch.equal(made(x), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        assert "relu" in str(torch.jit.trace(net, x).inlined_graph)
        assert torch.equal(torch.jit.script(net)(x), x)
    assert "self.inner(x)" in str(torch.fx.symbolic_trace(net).code)


def test_the_class_of_a_module_is_copied_without_profkit(calls: ModuleCalls) -> None:
    calls.narrow(Net())
    sent = pickle.dumps(vars(Net)["__call__"])
    assert b"profkit" not in sent
    assert pickle.loads(sent) is torch.nn.Module.__call__  # noqa: S301


def test_a_call_of_the_next_class_in_the_order_of_inheritance_is_called(
    calls: ModuleCalls, called: list[object]
) -> None:
    seen = []

    class Logged(torch.nn.Module):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self)
            result: torch.Tensor = super().__call__(x)
            return result

    class LoggedNet(Net, Logged):
        pass

    calls.narrow(Net())
    called.clear()
    net = LoggedNet()
    net(torch.ones(2))
    Net.__call__(net, torch.ones(2))
    assert seen == called == [net, net]


def test_a_class_whose_metaclass_refuses_a_change_is_left_alone(calls: ModuleCalls) -> None:
    class Fixed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise RuntimeError(name)

    class FixedNet(Net, metaclass=Fixed):
        pass

    calls.narrow(FixedNet())
    assert not calls.is_narrow


def test_a_class_with_a_call_of_its_own_is_left_alone(
    calls: ModuleCalls, called: list[object]
) -> None:
    own_call, net, n_hooks = OwnCall(), Net(), len(HOOKS)
    calls.narrow(own_call)
    assert len(HOOKS) == n_hooks
    net(torch.ones(2))
    assert called == [net, net.inner]


def test_before_dynamo_is_imported_the_hook_of_torch_is_back(
    calls: ModuleCalls, called: list[object]
) -> None:
    net, n_hooks = Net(), len(HOOKS)
    calls.narrow(net)
    assert len(HOOKS) == n_hooks - 1
    assert calls.find_spec("json") is None
    assert len(HOOKS) == n_hooks - 1
    assert calls.find_spec(DYNAMO) is None
    assert len(HOOKS) == n_hooks
    net(torch.ones(2))
    assert called == [net, net.inner]


def test_with_dynamo_imported_the_hook_of_torch_stays(
    calls: ModuleCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, DYNAMO, torch)
    n_hooks = len(HOOKS)
    calls.narrow(Net())
    assert len(HOOKS) == n_hooks


class SlowlyChanged(type):
    """A class of which the attributes take a while to set, so that other threads get their turn."""

    def __setattr__(cls, name: str, value: object) -> None:
        time.sleep(0.02)
        super().__setattr__(name, value)


def test_many_threads_may_narrow_at_once(calls: ModuleCalls, called: list[object]) -> None:
    class Slow(Net, metaclass=SlowlyChanged):
        """A module of such a class."""

    net, start = Slow(), threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(_narrow, calls, net, start) for _ in range(8)]:
            done.result()

    assert calls.is_narrow
    net(torch.ones(1, 1))
    assert called == [net]


def _narrow(calls: ModuleCalls, module: torch.nn.Module, start: threading.Barrier) -> None:
    start.wait()
    calls.narrow(module)
