"""``profkit.no_sync`` reports the line that synchronizes, and changes nothing else."""

import asyncio
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from operator import methodcaller

import pytest
import torch

import profkit
from profkit.capture.process import devices
from profkit.capture.recording import current
from profkit.capture.syncs import sync_monitor
from profkit.capture.syncs.guard import NoSync
from profkit.errors import UsageError
from profkit.model.live_memory import SyncSite
from profkit.model.location import Frame
from tests.capture.syncs.conftest import ONE, FakeSyncMode, Fires

pytestmark = pytest.mark.usefixtures("cuda")


def line_of(function: object) -> int:
    """Return the line after a function's first."""
    return int(function.__code__.co_firstlineno) + 1  # type: ignore[attr-defined]


def syncs() -> float:
    return float(torch.std(ONE))


def test_the_error_is_raised_at_the_line_that_synchronizes() -> None:
    after: list[float] = []
    with pytest.raises(profkit.HostSyncError) as caught, profkit.no_sync():
        after.append(syncs())
    assert not after
    assert f"test_no_sync.py:{line_of(syncs)} in syncs: `return float(torch.std(ONE))`" in str(
        caught.value
    )
    (line,) = caught.value.lines
    assert line == SyncSite(sync_monitor.OPERATION, Frame(__file__, line_of(syncs), "syncs"), 1)
    assert caught.traceback[-1].name == "syncs"


def test_work_without_a_sync_passes() -> None:
    with profkit.no_sync() as guard:
        torch.ones(3).add_(1)
    assert guard.lines == ()


def test_an_allowed_sync_passes_and_is_counted_with_its_reason() -> None:
    with profkit.no_sync() as guard, profkit.allow_sync("to log it"):
        for _ in range(3):
            syncs()
    (line,) = guard.lines
    assert (line.n_calls, line.allowed_reason) == (3, "to log it")
    assert line.frame is not None
    assert line.frame.line == line_of(syncs)


def test_a_sync_after_an_allowed_block_is_an_error() -> None:
    with profkit.no_sync():
        with profkit.allow_sync("once"):
            syncs()
        with pytest.raises(profkit.HostSyncError):
            syncs()


def test_counts_have_one_entry_per_line() -> None:
    with profkit.no_sync(raises=False) as guard:
        for _ in range(50):
            syncs()
        torch.std(ONE)
    assert [line.n_calls for line in guard.lines] == [50, 1]


@pytest.mark.filterwarnings("ignore:std")  # the fake sync's, where none is monitored
def test_functions_of_every_kind_are_guarded() -> None:
    @profkit.no_sync()
    def function() -> None:
        syncs()

    @profkit.no_sync()
    async def coroutine() -> None:
        await asyncio.sleep(0)
        syncs()

    @profkit.no_sync()
    def generator() -> Iterator[int]:
        yield 1
        syncs()

    with pytest.raises(profkit.HostSyncError):
        function()
    with pytest.raises(profkit.HostSyncError):
        asyncio.run(coroutine())
    values = generator()
    assert next(values) == 1
    syncs()  # between two values the program is outside the generator
    with pytest.raises(profkit.HostSyncError):
        next(values)


def test_a_function_can_be_allowed_to_synchronize() -> None:
    @profkit.allow_sync("reads the number of boxes")
    def boxes() -> float:
        return syncs()

    with profkit.no_sync():
        boxes()
        with pytest.raises(profkit.HostSyncError):
            syncs()


def test_other_threads_are_not_guarded() -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            syncs()
        except profkit.HostSyncError as error:
            errors.append(error)

    with profkit.no_sync() as guard:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert not errors
    assert guard.lines == ()


def test_other_tasks_are_not_guarded() -> None:
    async def other() -> None:
        syncs()

    async def guarded(started: asyncio.Event) -> tuple[SyncSite, ...]:
        with profkit.no_sync() as guard:
            started.set()
            await asyncio.sleep(0.01)
        return guard.lines

    async def both() -> tuple[SyncSite, ...]:
        started = asyncio.Event()
        task = asyncio.create_task(guarded(started))
        await started.wait()
        await asyncio.create_task(other())
        return await task

    assert asyncio.run(both()) == ()


def test_a_sync_in_the_backward_pass_is_raised_at_its_line_and_counted() -> None:
    class Syncs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            syncs()
            return grad

    loss = Syncs.apply(torch.ones(1, requires_grad=True)).sum()
    with profkit.no_sync() as guard, pytest.raises(profkit.HostSyncError) as caught:
        loss.backward()
    (line,) = guard.lines
    assert line.frame == Frame(__file__, line_of(syncs), "syncs")
    assert caught.value.lines == (line,)


def test_a_sync_in_a_native_thread_belongs_to_the_only_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_monitor, "_in_native_thread", lambda: True)
    raised = threading.Event()

    def other() -> None:
        with pytest.raises(profkit.HostSyncError):
            syncs()
        raised.set()

    with profkit.no_sync():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert raised.is_set()


def test_explicit_calls_are_reported_before_they_block(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_profkits_own_syncs_are_not_reported() -> None:
    with profkit.no_sync() as guard:
        with pytest.raises(profkit.HostSyncError):
            torch.cuda.synchronize()
        devices.synchronize()
        with devices.profkit_sync():
            syncs()
            torch.cuda.synchronize()
    assert sum(line.n_calls for line in guard.lines) == 1


def test_the_last_guard_restores_everything(cuda: FakeSyncMode) -> None:
    filters, shown, call = list(warnings.filters), warnings.showwarning, torch.cuda.synchronize
    with profkit.no_sync(), profkit.no_sync():
        assert cuda.mode == 1
        assert torch.cuda.synchronize is not call
    assert list(warnings.filters) == filters
    assert warnings.showwarning is shown
    assert torch.cuda.synchronize is call
    assert cuda.mode == 0


def test_a_mode_that_the_program_sets_meanwhile_is_not_changed(cuda: FakeSyncMode) -> None:
    with profkit.no_sync():
        cuda.mode = 2
    assert cuda.mode == 2
    cuda.mode = 0


def test_a_program_that_set_the_mode_still_gets_its_warnings(cuda: FakeSyncMode) -> None:
    cuda.mode = 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        syncs()
        with profkit.no_sync(raises=False) as guard:
            syncs()
    assert [line.n_calls for line in guard.lines] == [1]
    assert [str(warning.message)[:5] for warning in seen] == ["std()", "std()"]
    assert cuda.mode == 1
    cuda.mode = 0


def test_the_guard_comes_before_filters_that_raise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profkit.no_sync() as guard, profkit.allow_sync("why not"):
            syncs()
        with pytest.raises(UserWarning, match="std"):
            syncs()
    assert [line.n_calls for line in guard.lines] == [1]


def test_other_warnings_are_shown() -> None:
    with pytest.warns(UserWarning, match="mine") as shown, profkit.no_sync() as guard:
        warnings.warn("mine", stacklevel=1)
    assert len(shown) == 1
    assert guard.lines == ()


def test_an_exception_of_the_block_is_raised_unchanged() -> None:
    with pytest.raises(KeyError), profkit.no_sync():
        raise KeyError


def test_a_sync_that_only_the_gpu_trace_reports_is_raised_at_the_end(
    cuda: FakeSyncMode, stream_sync: Fires
) -> None:
    after: list[str] = []

    def step() -> None:
        with profkit.no_sync(extensions=True):
            stream_sync()
            after.append("the operator is done")

    with pytest.raises(profkit.HostSyncError, match="stream synchronization") as caught:
        step()
    assert after
    assert "test_no_sync.py" in str(caught.value)
    assert cuda.n_traced == 1


def test_a_sync_that_the_mode_and_the_gpu_trace_report_is_counted_once(stream_sync: Fires) -> None:
    # As in C++: inside one call the trace reports first, and then the warning comes.
    one_call = methodcaller("__call__")
    with profkit.no_sync(raises=False, extensions=True) as guard:
        for _ in range(4):
            list(map(one_call, [stream_sync, partial(torch.std, ONE)]))
        list(map(one_call, [stream_sync]))
        list(map(one_call, [partial(torch.std, ONE)]))
    assert sorted(line.n_calls for line in guard.lines) == [1, 1, 4]


@pytest.mark.filterwarnings("ignore:std")  # the fake sync's, where none is monitored
def test_nothing_is_monitored_with_recording_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current.state, "is_on", False)
    with profkit.no_sync() as guard:
        syncs()
    assert guard.lines == ()
    assert not isinstance(guard, NoSync)


@pytest.mark.parametrize("why", ["", "  ", len])
def test_a_sync_is_allowed_only_with_a_reason(why: str) -> None:
    with pytest.raises(UsageError):
        profkit.allow_sync(why)
