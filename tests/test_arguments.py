"""Arguments of the wrong type or value are refused at the call of every public function."""

from pathlib import Path

import numpy as np
import pytest

import profkit
from profkit.arguments import Arguments, whole
from profkit.errors import UsageError
from profkit.testing import TraceBuilder

WRONG: dict[str, dict[str, list[object]]] = {
    "allow_sync": {"": ["", " ", 3, None, lambda: 0]},
    "no_sync": {"raises": [1, "yes", None], "extensions": [0, "no"]},
    "no_leak": {"": [3, "1 MiB"], "allowed_bytes": ["1 MiB", -1, 1.5, None, True, [1]]},
    "memory": {
        "": [3, ["epoch"]], "limit": ["3", -1, 2.0, None], "dir": [3, ["traces"]],
        "quiet": [1, "yes"], "tracemalloc": [1, None],
    },
    "trace": {
        "": [3, ["step"]], "wait": ["3", -1, None], "warmup": [1.0, -2], "active": ["3", 0, -1],
        "repeat": ["2", -1], "limit": ["3", -1, None], "only": ["gpu", 3, ["cuda"]],
        "dir": [3], "ops": [1], "device": ["cuda"], "stacks": [None], "shapes": ["no"],
        "memory": [0], "flops": ["1"], "quiet": [1], "dri": ["traces"],
    },
    "steps": {
        "": [3, None], "name": [3], "wait": ["2"], "warmup": [-1], "active": [0], "limit": ["3"],
        "dir": [3], "quiet": ["yes"],
    },
    "listen": {"": [3, ["train"]], "dir": [3]},
    "load": {"": [3, None, ["a.json"]], "limit_bytes": ["1 GiB", -1], "on_progress": [3]},
    "analyze": {
        "": [3, None, [3]], "select": [3, [3]], "ignore": [None, [None]],
        "thresholds": [3, ["launch-bound"]], "strict": [1, "yes"], "on_stage": ["print"],
        "limit_bytes": ["1 GiB", -1],
    },
    "check": {
        "": [3, None, [3]], "budgets": [3, {"step": 1}], "baseline": [3], "thresholds": [3],
        "limit_bytes": [-1],
    },
    "compare": {
        "select": [3, [3]], "ignore": [None], "thresholds": [3], "limit_bytes": [-1],
        "on_progress": ["print"],
    },
    "history": {
        "": [3, None, [3]], "thresholds": [3], "limit_bytes": [-1], "workers": [0, "2"],
    },
    "what_if": {
        "": [3, ["a.json"]], "remove": [3, [3]], "scale": ["nccl*", 3], "graph": [1],
        "data_wait": ["no"], "thresholds": [3], "limit_bytes": [-1], "on_progress": ["print"],
    },
    "what_if_ranks": {
        "": [3, None, [3]], "ranks": [3, ["2"], [-1]], "stages": [None, [1.5]], "even": [1],
        "waiting": ["no"], "bandwidth": ["2", 0, {"all-gather": None}], "limit_bytes": [-1],
        "workers": [0, "2"],
    },
    "render": {
        "": [3, "report"], "format": [3, None], "width": ["80"], "color": [1], "top": [-1],
    },
}  # fmt: skip
"""By public function and argument (the first one as an empty name) values that are wrong."""


CASES = [
    (function, name, value)
    for function, arguments in WRONG.items()
    for name, values in arguments.items()
    for value in values
]


@pytest.mark.parametrize(
    ("function", "name", "value"), CASES, ids=[f"{f}-{n}-{v!r:.20}" for f, n, v in CASES]
)
def test_a_wrong_argument_is_refused_at_the_call(
    function: str, name: str, value: object, tmp_path: Path
) -> None:
    path = TraceBuilder().write(tmp_path / "a.json")
    right: dict[str, tuple[object, ...]] = {
        "allow_sync": ("a reason",),
        "steps": ([1, 2],),
        "load": (path,),
        "analyze": (path,),
        "check": (path, {}),
        "compare": (path, path),
        "what_if": (path,),
        "what_if_ranks": (path,),
        "history": (path,),
        "render": (profkit.analyze(path),),
    }
    call = getattr(profkit, function)
    given = right.get(function, ()) if name else (value, *right.get(function, ())[1:])
    if name == "budgets":
        given = given[:1]

    with pytest.raises(UsageError):
        call(*given, **({name: value} if name else {}))


def test_every_public_function_is_in_the_table() -> None:
    functions = {name for name in profkit.__all__ if callable(getattr(profkit, name))}
    assert {name for name in functions if name.islower()} == set(WRONG)


def test_an_error_names_function_argument_and_value() -> None:
    arguments = Arguments("profkit.memory", limit=whole())
    with pytest.raises(UsageError) as caught:
        arguments.check(limit="3")
    message = "profkit.memory: limit must be a whole number of 0 or more, not '3'."
    assert caught.value.message == message


class Rude:
    """An object whose ``repr`` fails."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("value", [Rude(), "x" * 10_000, 10**200, "\x1b[31m"])
def test_a_value_is_shown_short_and_safe(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        Arguments("f", limit=whole()).check(limit=value if value != 10**200 else -(10**200))
    assert len(caught.value.message) < 150
    assert "\x1b" not in caught.value.message


def test_numbers_of_numpy_are_whole_numbers() -> None:
    Arguments("f", limit=whole()).check(limit=np.int64(3))
    with pytest.raises(UsageError):
        Arguments("f", limit=whole()).check(limit=np.float64(3))


def test_one_rule_may_be_given_as_a_string(tmp_path: Path) -> None:
    path = TraceBuilder().write(tmp_path / "a.json")
    analysis = profkit.analyze(path, select="launch-bound")
    assert analysis == profkit.analyze(path, select=["launch-bound"])
