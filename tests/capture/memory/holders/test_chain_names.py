"""Chains are rendered without user code, short and printable, and as expressions."""

import gc
import sys
import weakref
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.holders.holder_chains import find_chains
from tests.capture.memory.worlds import World, of, text

HOSTILE = """\
class Meta(type):
    def __getattribute__(cls, name):
        calls.append(name)
        raise RuntimeError(name)
    def __eq__(cls, other):
        calls.append("meta eq")
        raise RuntimeError
    def __hash__(cls):
        calls.append("meta hash")
        raise RuntimeError

class Hostile(metaclass=Meta):
    def __init__(self, kept):
        object.__setattr__(self, "kept", kept)
    def __getattribute__(self, name):
        calls.append(name)
        raise RuntimeError(name)
    def __eq__(self, other):
        calls.append("eq")
        raise RuntimeError
    def __hash__(self):
        calls.append("hash")
        return 1
    def __repr__(self):
        calls.append("repr")
        raise RuntimeError
    def __bool__(self):
        calls.append("bool")
        raise RuntimeError
    def __len__(self):
        calls.append("len")
        raise RuntimeError
    def __iter__(self):
        calls.append("iter")
        raise RuntimeError
    def __sizeof__(self):
        calls.append("sizeof")
        raise RuntimeError

class Lying(list):
    __class__ = dict
    def __iter__(self):
        calls.append("iter")
        raise RuntimeError
    def __len__(self):
        calls.append("len")
        raise RuntimeError
    def __getitem__(self, place):
        calls.append("getitem")
        raise RuntimeError

class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append("torch function")
        raise RuntimeError

dead = weakref.proxy(Holder())
odd = torch.zeros(2).as_subclass(Odd)
calls = []
key = Hostile(None)
kept = Lying([dead, Hostile({key: [made()]}), odd])
calls.clear()
"""


def test_no_user_code_runs(world: World) -> None:
    module = world(HOSTILE)
    chains = of(module)
    assert module.calls == []
    assert [text(chain) for chain in chains] == ["world.kept[1].kept[<world.Hostile>][0]"]


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("'k' * 10_000_000", "kkkkkk…kkk"),
        ("'\x1b[2J\u202ename'", r"[2J"),
        ("10 ** 1_000_000", "<int>"),
        ("tuple(range(100_000))", "(0, 1, 2, 3, …)"),
        ("((1, (2, (3, (4,)))),)", "(("),
        ("b'x' * 10_000_000", "b'xxx"),
        ("frozenset({1})", "<frozenset>"),
        ("float('nan')", "[nan]"),
    ],
)
def test_a_key_is_short_and_printable(world: World, key: str, shown: str) -> None:
    module = world(f"kept = {{{key}: made()}}\n")
    (chain,) = of(module)
    assert shown.replace("…", "") in text(chain).replace("…", "") or shown in text(chain)
    assert len(text(chain)) < 100
    assert text(chain).isprintable()


@pytest.mark.parametrize(
    ("source", "name", "scope", "is_entry"),
    [
        ("history = [made()]", "world.history", "", True),
        ("history = [{'loss': made()}, {}]", "world.history", "", True),
        ("history = {made()}", "world.history", "", True),
        ("total = made()", "world.total", "", False),
        ("model = nn.Linear(2, 2)\nmodel.cache = {'k': made()}", "world.model.cache", "", True),
        (
            "def keep(out):\n    seen = [out]\n    return lambda: seen\ncallback = keep(made())",
            "seen", " in the closure of <lambda> at world.py:19", True,
        ),
        ("of = {'a': [], 'b': [made(), 1, 2]}", "world.of['b']", "", True),
        ("rows = [{'x': made()}, {}, {}]", "world.rows", "", True),
        ("again = [iter((made(),))]", "world.again", "", True),
    ],
)  # fmt: skip
def test_a_chain_has_the_user_s_name_of_what_grows(
    world: World, source: str, name: str, scope: str, *, is_entry: bool
) -> None:
    (chain,) = of(world(source))
    assert (chain.name, chain.scope, chain.is_entry) == (name, scope, is_entry)


steps = st.lists(st.sampled_from(["list", "dict", "tuple", "attribute", "deque"]), max_size=6)


@given(paths=st.lists(steps, min_size=1, max_size=4))
def test_every_chain_is_an_expression_that_evaluates_to_the_object(paths: list[list[str]]) -> None:
    gc.freeze()  # existing objects need not be scanned again for each example
    module = ModuleType("grown")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["grown"] = module

    try:
        target = torch.zeros(1)
        for number, path in enumerate(paths):
            vars(module)[f"v{number}"] = _build_containers(path, target)
        seen = weakref.ref(target)
        del target
        chains = find_chains([seen()], limit=10, budget_s=60.0)[0]
        assert len(chains) == len(paths)
        for chain in chains:
            assert eval(text(chain), {"grown": module}) is seen()  # noqa: S307
        lengths = [len(chain.parts) for chain in chains]
        assert lengths == sorted(lengths)
        for chain in chains:
            exec(f"del {''.join(chain.parts[:2])}", {"grown": module})  # noqa: S102
        assert seen() is None
    finally:
        gc.unfreeze()
        del sys.modules["grown"]


class Box:
    """Holds one thing."""

    kept: Any


def _build_containers(path: list[str], target: object) -> object:
    """Build a target within containers, the innermost first."""
    from collections import deque

    held: Any = [target]
    for step in path:
        if step == "attribute":
            box = Box()
            box.kept = held
            held = box
        else:
            held = {
                "list": lambda tensor: [0, tensor, 2],
                "dict": lambda tensor: {"a": 0, (1, "b"): tensor},
                "tuple": lambda tensor: (tensor, [3]),
                "deque": lambda tensor: deque([4, 5, tensor]),
            }[step](held)
    return held


def test_what_has_no_name_in_python_is_called_by_the_object_around_it(world: World) -> None:
    module = world(
        "import pandas as pd\n"
        "def run():\n"
        "    table = pd.DataFrame({'a': np.zeros(9)})\n"
        "    tracked(table._mgr.blocks[0].values)\n"
        "    return (yield)\n"
        "running = run()\n"
        "next(running)\n"
    )
    assert {(chain.name, chain.scope) for chain in of(module)} == {
        ("table", " in generator run at world.py:18")
    }
