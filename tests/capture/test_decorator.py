"""``profkit.trace`` as a decorator: functions, methods, async functions and generators."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.errors import UsageError

Opened = Callable[[str | None], dict[str, Any]]


def work() -> torch.Tensor:
    """Return a few operators."""
    return (torch.ones(4, 4) @ torch.ones(4, 4)).sum()


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def annotations(trace: dict[str, Any]) -> list[str]:
    return [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]


def ops(trace: dict[str, Any]) -> list[str]:
    return [e["name"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]


def test_a_bare_decorator_uses_the_functions_name(tmp_path: Path) -> None:
    @profkit.trace
    def train_step(x: int, *, y: int = 1) -> int:
        """Docs."""
        work()
        return x + y

    assert [train_step(i, y=2) for i in range(5)] == [2, 3, 4, 5, 6]
    assert train_step.__name__ == "train_step"
    assert train_step.__doc__ == "Docs."
    assert [path.parent.name for path in list_files(tmp_path)] == ["train_step"] * 3


def test_the_name_of_a_method_has_its_class(tmp_path: Path) -> None:
    class Model:
        @profkit.trace()
        def forward(self) -> "Model":
            work()
            return self

        @profkit.trace("built")
        @staticmethod
        def build() -> torch.Tensor:
            return work()

        @profkit.trace
        @classmethod
        def make(cls) -> "Model":
            work()
            return cls()

    model = Model()
    assert model.forward() is model
    assert model.build().item() == 64
    assert isinstance(Model.make(), Model)
    names = {path.parent.name for path in list_files(tmp_path)}
    assert names == {"Model.forward", "built", "Model.make"}


def test_recursion_is_one_trace(tmp_path: Path) -> None:
    @profkit.trace("down", limit=1)
    def down(n: int) -> int:
        work()
        return 0 if n == 0 else 1 + down(n - 1)

    assert down(3) == 3
    assert len(list_files(tmp_path)) == 1


def test_an_async_function_is_recorded_over_its_awaits(opened: Opened) -> None:
    blocks: list[str] = []

    @profkit.trace("waits")
    async def waits() -> int:
        work()
        await asyncio.sleep(0)
        torch.ones(2).exp()
        blocks.append("done")
        return 5

    async def both() -> list[int]:
        return list(await asyncio.gather(waits(), waits()))

    assert asyncio.run(both()) == [5, 5]
    assert blocks == ["done", "done"]
    path = next(iter(sorted(Path(os.environ["PROFKIT_DIR"]).rglob("*.gz"))))
    trace = opened(str(path))
    assert {"aten::matmul", "aten::exp"} <= set(ops(trace))
    assert annotations(trace).count("waits") == 2


def test_each_item_of_a_generator_is_recorded(tmp_path: Path, opened: Opened) -> None:
    @profkit.trace("items")
    def items() -> Generator[int, str, str]:
        got = []
        for i in range(4):
            work()
            try:
                got.append((yield i))
            except KeyError:
                got.append("thrown")
        return "".join(got)

    generator = items()
    assert next(generator) == 0
    torch.ones(2).exp()
    assert generator.send("a") == 1
    assert generator.throw(KeyError()) == 2
    assert generator.send("b") == 3
    with pytest.raises(StopIteration) as end:
        generator.send("c")
    assert end.value.value == "athrownbc"
    traces = [opened(str(path)) for path in list_files(tmp_path)]
    assert len(traces) == 3
    assert all("aten::matmul" in ops(trace) for trace in traces)
    assert not any("aten::exp" in ops(trace) for trace in traces)
    assert all(trace["profkit"]["stopped_by"] == "" for trace in traces)


def test_a_generator_that_is_closed_early_runs_its_finally() -> None:
    cleaned = []

    @profkit.trace("items", limit=1)
    def items() -> Generator[int, None, None]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append("yes")

    for _ in items():
        break
    assert cleaned == ["yes"]


def test_each_item_of_an_async_generator_is_recorded(tmp_path: Path) -> None:
    @profkit.trace("items", limit=2)
    async def items() -> AsyncGenerator[int, None]:
        for i in range(3):
            work()
            await asyncio.sleep(0)
            yield i

    async def collect() -> list[int]:
        return [i async for i in items()]

    assert asyncio.run(collect()) == [0, 1, 2]
    assert len(list_files(tmp_path)) == 2


def test_a_class_cannot_be_decorated() -> None:
    with pytest.raises(UsageError, match="functions"):
        profkit.trace("x")(type("Model", (), {}))
