"""Where the API is misused, one sentence says how it is used."""

import asyncio
import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.recording import current
from profkit.errors import UsageError
from tests.processes import start_forked

BLOCKS = ("allow_sync", "memory", "no_leak", "no_sync", "trace")
FUNCTIONS = [
    name
    for name in profkit.__all__
    if callable(getattr(profkit, name)) and not isinstance(getattr(profkit, name), type)
]
api: Any = profkit
"""The package, without the types that a checker would find the mistakes by."""
Decorator = Callable[[Any], Any]
BARE: list[Decorator] = [profkit.trace, profkit.memory, profkit.no_leak, profkit.no_sync]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_without_its_parentheses_says_what_to_write(name: str) -> None:
    block = getattr(profkit, name)
    with pytest.raises(UsageError, match=f"`with profkit.{name}:` lacks the call") as caught, block:
        pass
    assert caught.value.hint.startswith(f"Write `with profkit.{name}(")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_looks_like_a_function(name: str) -> None:
    function = getattr(profkit, name)
    original = function.__wrapped__
    assert inspect.signature(function) == inspect.signature(original)
    assert function.__doc__ == original.__doc__
    assert inspect.getsource(function) == inspect.getsource(original)
    assert inspect.isroutine(function)
    assert (function.__module__, function.__name__) == ("profkit", name)
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301  (its own)
    assert copy.deepcopy(function) is function


def test_a_public_function_is_a_method_where_a_class_has_it() -> None:
    class Training:
        name = "train"
        load = api.load

    with pytest.raises(UsageError, match="path must be"):
        Training().load()


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            lambda: api.trace("x", warmpu=1),
            "profkit.trace has no argument warmpu.",
            "Did you mean warmup? It takes warmup, wait, active, repeat, limit, only, dir, ops,",
        ),
        (
            lambda: api.steps([1], wiat=1),
            "profkit.steps has no argument wiat.",
            "Did you mean wait? It takes wait, batches, name, warmup, active,",
        ),
        (
            lambda: api.memory("x", limt=1),
            "profkit.memory has no argument limt.",
            "Did you mean limit? It takes limit, dir, quiet, tracemalloc.",
        ),
        (
            lambda: api.no_leak(bytes=1),
            "profkit.no_leak has no argument bytes.",
            "It takes allowed_bytes.",
        ),
        (
            lambda: api.no_sync(raise_=True),
            "profkit.no_sync has no argument raise_.",
            "Did you mean raises? It takes raises, extensions.",
        ),
        (
            lambda: api.analyze("x", strikt=1),
            "profkit.analyze has no argument strikt.",
            "Did you mean strict? It takes strict, path,",
        ),
        (
            lambda: api.check("x", {}, baselin=1),
            "profkit.check has no argument baselin.",
            "Did you mean baseline? It takes baseline, paths, budgets,",
        ),
        (
            lambda: api.trace("x", zzz=1, qqq=2),
            "profkit.trace has no argument zzz, qqq.",
            "It takes wait, warmup,",
        ),
        (lambda: api.trace(name="x"), "profkit.trace takes its name without `name=`.", "Give"),
        (lambda: api.memory(name="x"), "profkit.memory takes its name without", "Give"),
        (
            lambda: api.steps("train", [1, 2]),
            "profkit.steps takes the batches first and then the name; here the first argument",
            "Write profkit.steps(batches, 'train').",
        ),
        (lambda: api.steps(3), "profkit.steps: batches must be an iterable, not 3.", ""),
        (lambda: api.steps([1], warmup=-1), "profkit.steps: warmup must be a whole", ""),
        (
            lambda: api.allow_sync(lambda: 1),
            "profkit.allow_sync: why must be a reason, a string,",
            'Write it as in profkit.allow_sync("',
        ),
        (
            lambda: api.trace("x", wait=3, active=3)(print),
            "profkit.trace takes `wait`, `warmup`, `active` and `repeat` for the steps of a loop;",
            "Leave them out: the first `limit` calls are recorded. Or write `with profkit.trace(…)",
        ),
        (
            lambda: api.trace("x").__exit__(None, None, None),
            "This profkit.trace is not open, so it cannot be closed.",
            "Use it as `with profkit.trace(…):`",
        ),
        (
            lambda: api.allow_sync("x").__exit__(None, None, None),
            "This profkit.allow_sync is not open,",
            "Use it as",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_write(
    call: Callable[[], object], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


def test_a_loop_is_not_a_block() -> None:
    loop = api.steps([1], "train")
    with pytest.raises(UsageError, match=r"for batch in profkit.steps\(batches, 'train'\)"), loop:
        pass


@pytest.mark.parametrize("state", ["on", "off"])
@pytest.mark.parametrize("name", BLOCKS)
def test_an_asynchronous_block_says_what_to_write(
    name: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_on = state == "on"
    monkeypatch.setattr(current.state, "is_on", is_on)
    block = getattr(profkit, name)("x") if name == "allow_sync" else getattr(profkit, name)()

    async def work() -> None:
        async with block:
            pass

    with pytest.raises(UsageError, match=f"Write `with profkit.{'memory|' if not is_on else ''}"):
        asyncio.run(work())


@pytest.mark.parametrize("decorator", BARE, ids=lambda decorator: decorator.__name__)
def test_a_module_is_not_decorated_but_its_forward_can_be(decorator: Decorator) -> None:
    model, name = torch.nn.Linear(2, 2), f"profkit.{vars(decorator)['__name__']}"
    with pytest.raises(UsageError, match="would lose its parameters") as caught:
        decorator(model)
    assert caught.value.hint == (f"Decorate its forward: model.forward = {name}(model.forward).")
    with pytest.raises(UsageError, match="Linear is a class"):
        decorator(torch.nn.Linear)


@pytest.mark.parametrize("decorator", BARE, ids=lambda decorator: decorator.__name__)
def test_a_bare_decorator_takes_functions_and_methods_of_all_kinds(
    decorator: Decorator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFKIT_DIR", str(tmp_path))

    @decorator
    def double(x: int) -> int:
        return 2 * x

    class Model:
        @decorator
        def of_self(self, x: int) -> int:
            return x

        @decorator
        @staticmethod
        def of_none(x: int) -> int:
            return x

        @decorator
        @classmethod
        def of_class(cls, x: int) -> tuple[type, int]:
            return cls, x

    assert double.__name__ == "double"
    assert double(2) == 4
    assert (Model().of_self(3), Model.of_none(4), Model.of_class(5)) == (3, 4, (Model, 5))


def stepped(n: int, tmp_path: Path, **schedule: int) -> None:
    """End some steps in a block."""
    with api.trace("loop", dir=tmp_path, **schedule) as t:
        for _ in range(n):
            torch.zeros(3)
            t.step()


@pytest.mark.parametrize(
    ("n", "schedule", "texts"),
    [
        (
            0,
            {"wait": 1, "warmup": 1, "active": 3},
            ["recorded nothing of “loop”: no step has ended.", "call `t.step()` at the end of"],
        ),
        (0, {"active": 3}, ["recorded no complete active step of “loop”: no step has ended."]),
        (
            1,
            {"wait": 1, "warmup": 1, "active": 3},
            [
                "1 step has ended, and wait=1 and warmup=1 leave out the first 2.",
                "At least 5 steps are needed, each with a `t.step()` at its end",
            ],
        ),
        (2, {"wait": 3}, ["2 steps have ended, and wait=3 and", "At least 4 steps are needed"]),
        (3, {"wait": 1, "warmup": 1, "active": 3}, []),
        (0, {}, []),
    ],
)
def test_a_block_without_its_recorded_steps_says_how_many_it_needs(
    n: int,
    schedule: dict[str, int],
    texts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    current.reset_limits()
    stepped(n, tmp_path, **schedule)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    assert len(warnings) == (1 if texts else 0), warnings
    for text in texts:
        assert text in warnings[0]


def test_a_block_that_an_exception_ends_early_says_nothing_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    current.reset_limits()
    with pytest.raises(ValueError, match="no"), profkit.trace("loop", wait=3, dir=tmp_path):
        raise ValueError("no")
    assert "step" not in capsys.readouterr().err


def test_a_loop_with_too_few_batches_says_how_many_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    current.reset_limits()
    for _ in profkit.steps(range(3), "few", dir=tmp_path):
        torch.zeros(3)
    error = capsys.readouterr().err
    assert "profkit.steps recorded no complete active step of “few”: 3 steps have ended" in error
    assert "At least 7 batches are needed; or lower `wait` and `warmup`." in error


def test_steps_of_a_loop_that_is_not_recorded_are_told_to_listeners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(current.state, "is_on", False)
    monkeypatch.setattr(current, "step_listeners", [lambda: ends.append(1)])
    assert list(profkit.steps(range(4))) == [0, 1, 2, 3]
    assert len(ends) == 4


def test_steps_within_another_recording_are_told_to_listeners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current.reset_limits()
    ends: list[int] = []
    with profkit.trace("outer", dir=tmp_path, quiet=True):
        monkeypatch.setattr(current, "step_listeners", [lambda: ends.append(1)])
        list(profkit.steps(range(4), "inner", dir=tmp_path))
        stepped(3, tmp_path, wait=1)
    assert len(ends) == 7


THREADS = """
import threading, torch, profkit

barrier, paths = threading.Barrier(3), []

def work():
    barrier.wait()
    with profkit.trace("same") as t:
        barrier.wait()
        torch.zeros(3)
        barrier.wait()
    paths.append(t.path)

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(path is None for path in paths))
"""


def test_of_three_threads_one_records_and_one_note_says_why_the_others_do_not(
    tmp_path: Path,
) -> None:
    ended = start_forked(tmp_path, "-c", THREADS)
    assert ended.out.strip() == "2"
    notes = [line for line in ended.err.splitlines() if "one thread records at a time" in line]
    assert len(notes) == 1, ended.err
    assert "because another one records “same”: torch has one profiler per process" in notes[0]
    assert "ERROR" not in ended.err


def test_what_others_write_to_stderr_meanwhile_is_written(tmp_path: Path) -> None:
    program = (
        "import os, threading\n"
        "from profkit.capture.recording import quiet_profiler\n"
        "def work():\n"
        "    with quiet_profiler.without_thread_error():\n"
        "        os.write(2, b'before\\nERROR: External init callback must run in same thread as "
        "registerClient (1 != 2)\\nafter\\n')\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start(); thread.join()\n"
        "os.write(2, b'end\\n')\n"
    )
    ended = start_forked(tmp_path, "-c", program)
    assert ended.err == "before\nafter\nend\n"


def test_a_thread_starts_its_recording_also_with_a_closed_stderr(tmp_path: Path) -> None:
    program = (
        "import os, threading\n"
        "from profkit.capture.recording import quiet_profiler\n"
        "os.close(2)\n"
        "def work():\n"
        "    with quiet_profiler.without_thread_error():\n"
        "        print('started')\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start(); thread.join()\n"
    )
    assert start_forked(tmp_path, "-c", program).out == "started\n"


def test_threads_are_noted_once_for_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    current.reset_limits()

    def work() -> None:
        with profkit.trace("in a thread", dir=tmp_path):
            torch.zeros(3)

    with profkit.trace("outer", dir=tmp_path, quiet=True):
        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert capsys.readouterr().err.count("one thread records at a time") == 1
