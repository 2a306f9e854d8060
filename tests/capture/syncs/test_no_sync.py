"""``profkit.no_sync`` names the line that waits, and leaves everything else as it was."""

import asyncio
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from operator import methodcaller

import pytest
import torch

import profkit
from profkit.capture import current, devices
from profkit.capture.syncs import sync_monitor
from profkit.capture.syncs.guard import NoSync
from profkit.errors import UsageError
from profkit.model.live_memory import SyncSite
from profkit.model.location import Frame
from tests.capture.syncs.conftest import ONE, Fires, Waits

pytestmark = pytest.mark.usefixtures("cuda")


def line_of(function: object) -> int:
    """The line after a function's first."""
    return int(function.__code__.co_firstlineno) + 1  # type: ignore[attr-defined]


def waits() -> float:
    return float(torch.std(ONE))


def test_the_error_comes_from_the_waiting_line_and_names_it() -> None:
    after: list[float] = []
    with pytest.raises(profkit.HostSyncError) as caught, profkit.no_sync():
        after.append(waits())
    assert not after
    assert f"test_no_sync.py:{line_of(waits)} in waits: `return float(torch.std(ONE))`" in str(
        caught.value
    )
    (line,) = caught.value.lines
    assert line == SyncSite(sync_monitor.OPERATION, Frame(__file__, line_of(waits), "waits"), 1)
    assert caught.traceback[-1].name == "waits"


def test_what_does_not_wait_passes() -> None:
    with profkit.no_sync() as guard:
        torch.ones(3).add_(1)
    assert guard.lines == ()


def test_an_allowed_wait_passes_and_is_counted_with_its_reason() -> None:
    with profkit.no_sync() as guard, profkit.allow_sync("to log it"):
        for _ in range(3):
            waits()
    (line,) = guard.lines
    assert (line.n_calls, line.allowed_reason) == (3, "to log it")
    assert line.frame is not None
    assert line.frame.line == line_of(waits)


def test_what_comes_after_an_allowed_block_is_forbidden_again() -> None:
    with profkit.no_sync():
        with profkit.allow_sync("once"):
            waits()
        with pytest.raises(profkit.HostSyncError):
            waits()


def test_counting_has_one_entry_a_line_however_often_it_waits() -> None:
    with profkit.no_sync(raises=False) as guard:
        for _ in range(50):
            waits()
        torch.std(ONE)
    assert [line.n_calls for line in guard.lines] == [50, 1]


def test_functions_of_every_kind_are_guarded() -> None:
    @profkit.no_sync()
    def function() -> None:
        waits()

    @profkit.no_sync()
    async def coroutine() -> None:
        await asyncio.sleep(0)
        waits()

    @profkit.no_sync()
    def generator() -> Iterator[int]:
        yield 1
        waits()

    with pytest.raises(profkit.HostSyncError):
        function()
    with pytest.raises(profkit.HostSyncError):
        asyncio.run(coroutine())
    values = generator()
    assert next(values) == 1
    waits()  # between two values the program is outside the generator
    with pytest.raises(profkit.HostSyncError):
        next(values)


def test_a_function_may_be_allowed_to_wait() -> None:
    @profkit.allow_sync("reads the number of boxes")
    def boxes() -> float:
        return waits()

    with profkit.no_sync():
        boxes()
        with pytest.raises(profkit.HostSyncError):
            waits()


def test_another_thread_goes_on_as_it_is() -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            waits()
        except profkit.HostSyncError as error:
            errors.append(error)

    with profkit.no_sync() as guard:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert not errors
    assert guard.lines == ()


def test_another_task_goes_on_as_it_is() -> None:
    async def other() -> None:
        waits()

    async def guarded(started: asyncio.Event) -> None:
        with profkit.no_sync() as guard:
            started.set()
            await asyncio.sleep(0.01)
        assert guard.lines == ()

    async def both() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(guarded(started))
        await started.wait()
        await asyncio.create_task(other())
        await task

    asyncio.run(both())


def test_a_wait_in_the_backward_pass_is_charged_to_who_called_it() -> None:
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            waits()
            return grad

    loss = Waits.apply(torch.ones(1, requires_grad=True)).sum()
    with profkit.no_sync(), pytest.raises(profkit.HostSyncError, match="in waits"):
        loss.backward()


def test_a_thread_that_is_none_of_pythons_is_charged_to_the_only_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_monitor, "_in_native_thread", lambda: True)
    heard = threading.Event()

    def other() -> None:
        with pytest.raises(profkit.HostSyncError):
            waits()
        heard.set()

    with profkit.no_sync():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert heard.is_set()


def test_explicit_waits_are_heard_before_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: calls.append(args))
    before = torch.cuda.synchronize
    with (
        pytest.raises(profkit.HostSyncError, match=r"torch\.cuda\.synchronize\(\)"),
        profkit.no_sync(),
    ):
        torch.cuda.synchronize()
    assert not calls
    with profkit.no_sync(), profkit.allow_sync("to measure"):
        torch.cuda.synchronize("cuda:1")
    assert calls == [("cuda:1",)]
    assert torch.cuda.synchronize is before


def test_the_waits_of_profkit_itself_are_not_told() -> None:
    with profkit.no_sync() as guard:
        with pytest.raises(profkit.HostSyncError):
            torch.cuda.synchronize()
        devices.synchronize()
        with devices.profkit_sync():
            waits()
            torch.cuda.synchronize()
    assert sum(line.n_calls for line in guard.lines) == 1


def test_everything_is_as_before_when_nobody_listens_any_more(cuda: Waits) -> None:
    filters, shown, call = list(warnings.filters), warnings.showwarning, torch.cuda.synchronize
    with profkit.no_sync(), profkit.no_sync():
        assert cuda.mode == 1
        assert torch.cuda.synchronize is not call
    assert list(warnings.filters) == filters
    assert warnings.showwarning is shown
    assert torch.cuda.synchronize is call
    assert cuda.mode == 0


def test_a_mode_that_the_program_sets_meanwhile_stays(cuda: Waits) -> None:
    with profkit.no_sync():
        cuda.mode = 2
    assert cuda.mode == 2
    cuda.mode = 0


def test_a_program_that_asked_for_the_warnings_keeps_them(cuda: Waits) -> None:
    cuda.mode = 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        waits()
        with profkit.no_sync(raises=False) as guard:
            waits()
    assert [line.n_calls for line in guard.lines] == [1]
    assert [str(one.message)[:5] for one in seen] == ["std()", "std()"]
    assert cuda.mode == 1
    cuda.mode = 0


def test_warnings_that_are_errors_do_not_come_before_the_guard() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profkit.no_sync(), profkit.allow_sync("why not"):
            waits()
        with pytest.raises(UserWarning, match="std"):
            waits()


def test_other_warnings_are_shown_as_ever() -> None:
    with pytest.warns(UserWarning, match="mine"), profkit.no_sync():
        warnings.warn("mine", stacklevel=1)


def test_an_error_of_the_block_goes_first() -> None:
    with pytest.raises(KeyError), profkit.no_sync():
        raise KeyError


def test_a_wait_that_only_the_trace_knows_of_is_told_at_the_end(
    cuda: Waits, stream_waits: Fires
) -> None:
    after: list[str] = []

    def step() -> None:
        with profkit.no_sync(extensions=True):
            stream_waits()
            after.append("the operator is done")

    with pytest.raises(profkit.HostSyncError, match="stream synchronization") as caught:
        step()
    assert after
    assert "test_no_sync.py" in str(caught.value)
    assert cuda.n_traced == 1


def test_a_wait_that_the_mode_and_the_trace_tell_of_is_counted_once(stream_waits: Fires) -> None:
    # As in C++: within one call the trace is told, and then comes the warning.
    one_call = methodcaller("__call__")
    with profkit.no_sync(raises=False, extensions=True) as guard:
        for _ in range(4):
            list(map(one_call, [stream_waits, partial(torch.std, ONE)]))
        list(map(one_call, [stream_waits]))
        list(map(one_call, [partial(torch.std, ONE)]))
    assert sorted(line.n_calls for line in guard.lines) == [1, 1, 4]


def test_nothing_is_looked_at_where_profkit_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "is_on", False)
    with profkit.no_sync() as guard:
        waits()
    assert guard.lines == ()
    assert not isinstance(guard, NoSync)


@pytest.mark.parametrize("why", ["", "  ", len])
def test_a_wait_is_allowed_only_with_a_reason(why: str) -> None:
    with pytest.raises(UsageError):
        profkit.allow_sync(why)
