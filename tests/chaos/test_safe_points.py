"""The checker of safe points finds each kind of unsafe start or stop, and nothing else."""

import _thread
import cProfile
import gc
import importlib.util
import json
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final, Protocol

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

_FILE: Final = Path(__file__).parent / "safe_points" / "safe_point_checks.py"
_spec = importlib.util.spec_from_file_location("safe_point_checks", _FILE)
assert _spec is not None
assert _spec.loader is not None
checks: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(checks)

_RECORDER: Final = f"{checks.PROFKIT}capture/recording/profiler.py"
Call = Callable[..., list[str]]


class Checker(Protocol):
    annotations: object

    def find_violations(self, name: str, frame: FrameType) -> list[str]: ...


def written_in(file: str, source: str, **names: object) -> Callable[..., Any]:
    """Return the function ``f`` of a source text, as if it were written in that file."""
    module = compile(source, file, "exec")
    (code,) = (constant for constant in module.co_consts if isinstance(constant, CodeType))
    return FunctionType(code, {"__builtins__": __builtins__, **names})


@pytest.fixture
def checker() -> Checker:
    made: Checker = checks.Checker()
    return made


@pytest.fixture
def stop(checker: Checker) -> Call:
    """Stop the profiler as the recorder does, and return what is wrong with that."""
    return recorder_call(checker, "_disable_profiler")


def recorder_call(checker: Checker, name: str) -> Call:
    def find() -> list[str]:
        return checker.find_violations(name, sys._getframe(1))

    return written_in(_RECORDER, "def f(*_):\n    return find()\n", find=find)


def test_a_call_from_the_program_is_safe(stop: Call) -> None:
    assert stop() == []


def test_a_call_of_a_module_is_safe(stop: Call) -> None:
    class Net(nn.Module):
        def forward(self) -> list[str]:
            return stop()

    assert Net()() == []


def test_the_hooks_around_a_step_of_the_loop_are_safe(stop: Call) -> None:
    def steps() -> Iterator[list[str]]:
        yield stop()

    assert list(steps()) == [[]]


def test_it_finds_a_signal_handler(stop: Call) -> None:
    assert in_signal(lambda _signum, _frame: stop()) == ["a signal handler"]


def test_it_finds_a_signal_handler_that_is_a_method(stop: Call) -> None:
    class Handlers:
        def handle(self, _signum: int, _frame: object) -> list[str]:
            return stop()

    assert in_signal(Handlers().handle) == ["a signal handler"]


def test_it_finds_a_signal_handler_that_takes_any_arguments(stop: Call) -> None:
    assert in_signal(lambda *_: stop()) == ["a signal handler"]


def in_signal(handler: Callable[..., list[str]]) -> list[str]:
    """Return what a handler of SIGUSR1 returns."""
    results: list[str] = []

    def handle(*args: Any) -> None:  # noqa: ANN401
        results.extend(handler(*args))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    return results


def test_it_finds_a_profile_function(stop: Call) -> None:
    assert while_profiled(stop) == ["a profile or trace function"]


def while_profiled(stop: Call) -> list[str]:
    results: list[str] = []

    def profile(_frame: object, event: str, _argument: object) -> None:
        if event == "call" and not results:
            results.extend(stop())

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        checks._do_nothing()
    finally:
        sys.setprofile(before)
    return results


def test_it_finds_a_profile_function_that_is_written_in_c(stop: Call) -> None:
    results: list[str] = []

    def clock() -> int:
        if not results:
            results.extend(stop())
        return len(results)

    # cProfile is written in C, and asks a clock of the program for the time.
    profiler = cProfile.Profile(clock)
    profiler.runcall(checks._do_nothing)
    assert results == ["a profile or trace function"]


def test_it_finds_a_finalizer(stop: Call) -> None:
    results: list[str] = []

    class Batch:
        def __del__(self) -> None:
            results.extend(stop())

    del [Batch()][0]
    assert results == ["a finalizer"]


def test_it_finds_a_callback_of_a_weak_reference(stop: Call) -> None:
    results: list[str] = []
    batch = torch.nn.Identity()
    reference = weakref.ref(batch, lambda _reference: results.extend(stop()))
    del batch
    assert reference() is None
    assert results == ["a callback of a weak reference"]


def test_it_finds_a_weakref_finalizer(stop: Call) -> None:
    results: list[str] = []
    batch = torch.nn.Identity()
    weakref.finalize(batch, lambda: results.extend(stop()))
    del batch
    assert results == ["a callback of a weak reference"]


def test_it_finds_a_callback_of_the_garbage_collector(stop: Call) -> None:
    results: list[str] = []

    def on_collection(_phase: str, _info: object) -> None:
        results.extend(stop())

    gc.callbacks.append(on_collection)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(on_collection)
    assert set(results) == {"a callback of the garbage collector"}


def test_it_finds_a_hook_of_a_gradient(stop: Call) -> None:
    results: list[str] = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda _gradient: results.extend(stop()))
    weight.sum().backward()
    assert results == ["a backward pass"]


def test_it_finds_a_hook_after_a_gradient_is_accumulated(stop: Call) -> None:
    results: list[str] = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda _weight: results.extend(stop()))
    weight.sum().backward()
    assert results == ["a backward pass"]


def test_it_finds_a_hook_of_an_optimizers_step(stop: Call) -> None:
    results: list[str] = []
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    optimizer.register_step_post_hook(lambda *_: results.extend(stop()))
    optimizer.step()
    assert results == ["an optimizer's step"]


def test_it_finds_the_closure_of_an_optimizers_step(stop: Call) -> None:
    results: list[str] = []
    weight = torch.ones(2, requires_grad=True)

    def closure() -> float:
        results.extend(stop())
        return 0.0

    torch.optim.SGD([weight]).step(closure)
    assert results == ["an optimizer's step"]


def test_it_finds_the_step_of_an_optimizer_of_the_program(stop: Call) -> None:
    results: list[str] = []

    class Own(torch.optim.Optimizer):
        def step(self, _closure: object = None) -> None:  # type: ignore[override]
            results.extend(stop())

    step = Own.step
    optimizer = Own([torch.ones(1, requires_grad=True)], {})
    # Without the wrapper that torch puts around the step of each class.
    step(optimizer)
    assert results == ["an optimizer's step"]


def test_a_step_of_a_schedule_is_safe(stop: Call) -> None:
    class Schedule(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float | torch.Tensor]:
            results.append(stop())
            return [0.1]

    results: list[list[str]] = []
    weight = torch.ones(1, requires_grad=True)
    weight.sum().backward()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = Schedule(optimizer)
    optimizer.step()
    schedule.step()
    assert results
    assert not any(results)


def test_it_finds_a_dispatch_mode(stop: Call) -> None:
    results: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Callable[..., Any],
            _types: object,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:  # noqa: ANN401
            results.extend(stop())
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.ones(1)
    assert results == ["an operator"]


def test_it_finds_a_function_of_autograd(stop: Call) -> None:
    results: list[str] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
            results.extend(stop())
            return x * 2

    Double.apply(torch.ones(1))
    assert results == ["an operator"]


def test_it_finds_an_operator_that_the_program_implements(stop: Call) -> None:
    results: list[str] = []

    @torch.library.custom_op("chaos_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        results.extend(stop())
        return x * 2

    twice(torch.ones(1))
    assert results == ["an operator"]


def test_it_finds_an_annotation(checker: Checker, stop: Call) -> None:
    class Annotation(torch.autograd.profiler.record_function):
        """One of its own for this test, since torch's stays as it is."""

    checks.note_annotations(Annotation, checker.annotations)
    with Annotation("epoch"):
        with Annotation("forward"):
            pass
        assert stop() == ["the annotation epoch"]
    with Annotation("Optimizer.step#SGD.step"):
        assert stop() == []
    assert stop() == []


def test_it_finds_a_compilation(stop: Call) -> None:
    results: list[str] = []

    def backend(module: Any, _inputs: object) -> Any:  # noqa: ANN401
        results.extend(stop())
        return module.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    # Other tests of this process are of programs that compile nothing.
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.reset()
    assert results == ["a compilation"]


def test_it_finds_a_thread_that_does_not_run_the_program(checker: Checker) -> None:
    results: list[str] = []
    stop = recorder_call(checker, "_disable_profiler")
    is_done = threading.Event()
    helper = written_in(
        f"{checks.PROFKIT}capture/live/listener.py",
        "def f():\n    results.extend(stop())\n    is_done.set()\n",
        stop=stop,
        results=results,
        is_done=is_done,
    )
    _thread.start_new_thread(helper, ())
    assert is_done.wait(10)
    assert results == ["a thread that does not run the program"]


def test_a_thread_of_the_program_may_record_itself(checker: Checker) -> None:
    start, stop = (recorder_call(checker, f"_{what}able_profiler") for what in ("en", "dis"))
    results: list[str] = []
    train = written_in(
        "/home/me/train.py",
        "def f():\n    results.extend(start() + stop())\n",
        start=start,
        stop=stop,
        results=results,
    )
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert results == []


def test_it_finds_a_stop_on_another_thread_than_the_start(checker: Checker) -> None:
    start, stop = (recorder_call(checker, f"_{what}able_profiler") for what in ("en", "dis"))
    train = written_in("/home/me/train.py", "def f():\n    start()\n", start=start)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert stop() == ["another thread than that of the start"]
    assert stop() == []


def test_the_measurement_of_costs_may_use_a_thread_of_its_own(checker: Checker) -> None:
    assert measure_in_thread(checker) == []


def test_it_finds_a_measurement_of_costs_in_the_programs_thread(stop: Call) -> None:
    measure = written_in(
        f"{checks.PROFKIT}capture/recording/overhead.py",
        "def _measure_costs():\n    return handle()\n",
        handle=lambda: in_signal(lambda *_: stop()),
    )
    assert measure() == ["a signal handler"]


def measure_in_thread(checker: Checker) -> list[str]:
    results: list[str] = []
    is_done = threading.Event()
    stop = recorder_call(checker, "_disable_profiler")
    measure = written_in(
        f"{checks.PROFKIT}capture/recording/overhead.py",
        "def _measure_costs():\n    results.extend(stop())\n    is_done.set()\n",
        stop=stop,
        results=results,
        is_done=is_done,
    )
    _thread.start_new_thread(measure, ())
    assert is_done.wait(10)
    return results


def test_the_programs_own_profiler_may_be_used_anywhere(checker: Checker) -> None:
    def stop() -> list[str]:
        return checker.find_violations("_disable_profiler", sys._getframe())

    assert in_signal(lambda *_: stop()) == []


def test_the_programs_own_profiler_is_told_from_profkits_wrapper_of_it(checker: Checker) -> None:
    def find() -> list[str]:
        return checker.find_violations("_disable_profiler", sys._getframe(1))

    wrapper = written_in(
        f"{checks.PROFKIT}capture/process/program_profilers.py",
        "def f():\n    return find()\n",
        find=find,
    )
    assert in_signal(lambda *_: wrapper()) == []


def test_the_programs_objects_are_not_kept_alive(stop: Call) -> None:
    alive: list[object] = []

    def step(batch: object) -> None:
        reference = weakref.ref(batch)
        stop()
        del batch
        alive.append(reference())

    step(nn.Identity())
    # The caller's argument is gone as soon as the function lets go of it.
    assert alive == [None]


def test_torchs_functions_are_wrapped_and_violations_written(tmp_path: Path) -> None:
    file = tmp_path / "violations"
    module: Any = ModuleType("profiler")
    calls: list[str] = []
    for name in checks.CHECKED:
        setattr(module, name, lambda name=name: calls.append(name))
    checks.wrap_functions(module, str(file))
    stop = written_in(_RECORDER, "def f(*_):\n    module._disable_profiler()\n", module=module)
    stop()

    assert not file.exists()

    with handler_of(signal.SIGUSR1, stop):
        signal.raise_signal(signal.SIGUSR1)
    entry = json.loads(file.read_text())
    assert calls == ["_disable_profiler", "_disable_profiler"]
    assert (entry["call"], entry["violations"]) == ("_disable_profiler", ["a signal handler"])
    assert _RECORDER in entry["stack"][0]


@contextmanager
def handler_of(signum: int, handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)
