"""``profkit.no_leak`` raises an error for leaks in a block, or of a function's calls or items."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import profkit
from profkit.capture.memory import guard
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_boundaries import StepSource
from profkit.errors import UsageError
from profkit.model.leak_bytes import total_per_step_bytes

KEPT: list[object] = []
KIB = 1024


@pytest.fixture(autouse=True)
def _fresh() -> None:
    KEPT.clear()
    gc.collect()


def leak() -> None:
    KEPT.append(torch.zeros(4096))


def loop(body: Callable[[], None], guard: object, n_steps: int = 25) -> None:
    with guard as guarded:  # type: ignore[attr-defined]
        for _ in range(n_steps):
            body()
            guarded.step()


def test_a_leak_error_names_growth_allocation_site_and_holder() -> None:
    with pytest.raises(profkit.LeakError) as caught:
        loop(leak, profkit.no_leak())
    text = str(caught.value)
    assert text.startswith("Host memory grows by 16.0 KiB per step (steps ")
    assert "tensors of shape (4096,) float32, allocated at " in text
    assert "KEPT" in text.partition(" and retained by ")[2]
    assert f"{Path(__file__).name}:" in text
    assert caught.value.exit_code == 4
    assert len(caught.value.leaks) == 1


def test_stable_memory_is_not_an_error() -> None:
    loop(lambda: KEPT.__setitem__(slice(None), [torch.zeros(4096)]), profkit.no_leak())
    assert len(KEPT) == 1


def test_allowed_growth_is_not_an_error() -> None:
    loop(leak, profkit.no_leak(allowed_bytes=16384))
    with pytest.raises(profkit.LeakError):
        loop(leak, profkit.no_leak(allowed_bytes=16383))


def test_an_exception_of_the_block_takes_precedence() -> None:
    def program() -> None:
        with profkit.no_leak() as guard:
            for _ in range(20):
                leak()
                guard.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


def test_too_few_steps_cause_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    loop(leak, profkit.no_leak(), 3)
    assert "no_leak found 3 steps" in capsys.readouterr().err


def test_a_guarded_function_raises_at_the_call_that_makes_the_leak_certain() -> None:
    guarded = profkit.no_leak()(leak)
    for _ in range(15):
        guarded()
    with pytest.raises(profkit.LeakError):
        guarded()


def test_a_bare_decorator_guards_the_function() -> None:
    @profkit.no_leak
    def guarded() -> int:
        """Documented."""
        leak()
        return 3

    assert (guarded.__name__, guarded.__doc__) == ("guarded", "Documented.")
    assert [guarded() for _ in range(15)] == [3] * 15
    with pytest.raises(profkit.LeakError):
        guarded()


def test_only_functions_are_decorated() -> None:
    with pytest.raises(UsageError, match="decorates functions"):
        profkit.no_leak(3)  # type: ignore[call-overload]


def test_growth_of_a_graph_counts_up_to_the_allowed_bytes() -> None:
    def grown() -> profkit.LeakError:
        weight, totals = torch.ones(256, requires_grad=True), [torch.zeros(())]

        def body() -> None:
            totals[0] = totals[0] + weight.exp().sum()

        with pytest.raises(profkit.LeakError) as caught:
            loop(body, profkit.no_leak())
        return caught.value

    def allowed(n_bytes: int) -> None:
        weight, totals = torch.ones(256, requires_grad=True), [torch.zeros(())]

        def body() -> None:
            totals[0] = totals[0] + weight.exp().sum()

        loop(body, profkit.no_leak(allowed_bytes=n_bytes))

    (leak,) = grown().leaks
    per_step_bytes = total_per_step_bytes(leak)  # type: ignore[arg-type]
    # exp() saves 1 KiB, and each step adds three nodes of less than 1 KiB.
    assert KIB < per_step_bytes < 4 * KIB
    allowed(4 * KIB)
    with pytest.raises(profkit.LeakError):
        allowed(KIB)


def test_each_await_of_an_async_function_is_a_step() -> None:
    @profkit.no_leak
    async def guarded() -> int:
        await asyncio.sleep(0)
        leak()
        return 3

    async def program(n: int) -> list[int]:
        return [await guarded() for _ in range(n)]

    pending = [guarded() for _ in range(40)]  # calls, which only make coroutines
    for connection in pending:
        connection.close()
    assert asyncio.run(program(15)) == [3] * 15
    with pytest.raises(profkit.LeakError) as caught:
        asyncio.run(program(1))
    assert caught.value.leaks[0].per_step_bytes == 16 * KIB  # type: ignore[attr-defined]


def test_each_item_of_a_generator_is_a_step() -> None:
    @profkit.no_leak
    def items(n: int) -> Iterator[int]:
        for index in range(n):
            leak()
            yield index

    for _ in range(40):
        items(3)  # without an item
    assert list(items(15)) == list(range(15))
    last_items = items(1)
    with pytest.raises(profkit.LeakError) as caught:
        next(last_items)
    assert caught.value.leaks[0].per_step_bytes == 16 * KIB  # type: ignore[attr-defined]


def test_the_end_of_a_generator_is_not_a_step() -> None:
    @profkit.no_leak
    def item() -> Iterator[None]:
        leak()
        yield

    for _ in range(15):
        list(item())
    with pytest.raises(profkit.LeakError) as caught:
        list(item())
    assert caught.value.leaks[0].per_step_bytes == 16 * KIB  # type: ignore[attr-defined]


def test_each_item_of_an_async_generator_is_a_step() -> None:
    @profkit.no_leak
    async def items(n: int) -> AsyncIterator[int]:
        for index in range(n):
            leak()
            yield index

    async def program(n: int) -> list[int]:
        return [index async for index in items(n)]

    assert asyncio.run(program(15)) == list(range(15))
    with pytest.raises(profkit.LeakError):
        asyncio.run(program(1))


def test_stable_async_functions_and_generators_are_not_an_error() -> None:
    @profkit.no_leak
    async def awaited() -> None:
        KEPT[:] = [torch.zeros(4096)]

    @profkit.no_leak
    def items() -> Iterator[None]:
        while True:
            KEPT[:] = [torch.zeros(4096)]
            yield

    async def program(function: Callable[[], Awaitable[None]]) -> None:
        for _ in range(40):
            await function()

    asyncio.run(program(awaited))
    assert [item for _, item in zip(range(40), items(), strict=False)] == [None] * 40


def test_allowed_growth_does_not_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LeakMonitor] = []
    new = guard._monitor

    def noted(source: StepSource) -> LeakMonitor:
        made.append(new(source))
        return made[-1]

    monkeypatch.setattr(guard, "_monitor", noted)
    guarded = profkit.no_leak(allowed_bytes=16 * KIB)(leak)
    for _ in range(70):
        guarded()
    assert len(made) == 1


def test_a_function_whose_leak_begins_later_is_still_monitored() -> None:
    guarded = profkit.no_leak(allowed_bytes=16 * KIB)(lambda n: KEPT.append(torch.zeros(n * 4096)))
    for _ in range(20):
        guarded(1)

    def program() -> None:
        for _ in range(300):
            guarded(4)

    with pytest.raises(profkit.LeakError):
        program()


def test_calls_of_other_threads_are_not_steps() -> None:
    guarded = profkit.no_leak(leak)
    guarded()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(40):
            pool.submit(guarded).result()
    assert len(KEPT) == 41


def test_a_check_without_a_leak_imports_nothing() -> None:
    program = (
        "import sys, profkit\n"
        "@profkit.no_leak\n"
        "def step(): pass\n"
        "step(); before = set(sys.modules)\n"
        "for _ in range(40): step()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""
