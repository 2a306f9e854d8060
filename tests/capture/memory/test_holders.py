"""Who holds an object, against programs whose holder is known, and which let go of it when told."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.memory.holders import chains
from profkit.model.live import Chain

World = Callable[[str], ModuleType]

START = """\
import asyncio, collections, contextvars, dataclasses, functools, itertools, queue, threading
import types, weakref
import numpy as np
import torch
from torch import nn

def watched(thing):
    global ref
    ref = weakref.ref(thing)
    return thing

def made():
    return watched(torch.zeros(2))

class Holder:
    pass
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Runs a program as the module ``world``."""

    def run(source: str) -> ModuleType:
        file = tmp_path / "world.py"
        module = ModuleType("world")
        module.__dict__["__file__"] = str(file)
        sys.modules["world"] = module
        exec(compile(START + source, str(file), "exec"), module.__dict__)  # noqa: S102
        return module

    yield run
    sys.modules.pop("world", None)


def of(module: ModuleType, limit: int = 3) -> tuple[Chain, ...]:
    """The chains of what a program watches."""
    return chains([module.ref()], limit=limit)[0]


def text(chain: Chain) -> str:
    return "".join(chain.parts)


def line_of(needle: str, source: str) -> int:
    """The line of a program at which a text stands."""
    return next(
        n for n, line in enumerate((START + source).splitlines(), 1) if line.startswith(needle)
    )


CASES = {
    "a list": (
        "history = [torch.zeros(1) for _ in range(17)]\nhistory.append(made())",
        "world.history[17]",
        ("module-global", "list", 18),
        "del history[17]",
    ),
    "a class": (
        "class Net:\n    seen = {}\nNet.seen['3'] = made()",
        "Net.seen['3']",
        ("class", "dict", 1),
        "del Net.seen['3']",
    ),
    "an instance": (
        "trainer = Holder()\ntrainer.losses = [1, 2, 3, made()]",
        "world.trainer.losses[3]",
        ("instance", "list", 4),
        "trainer.losses.pop()",
    ),
    "an instance with slots": (
        (
            "@dataclasses.dataclass(slots=True)\nclass Slotted:\n    kept: object\n"
            "one = Slotted(made())"
        ),
        "world.one.kept",
        ("instance", "", None),
        "one.kept = None",
    ),
    "a closure": (
        "def keep(out):\n    return lambda: out\ncallbacks = [keep(made())]",
        "world.callbacks[0] → out in the closure of <lambda> at world.py:18",
        ("closure", "list", 1),
        "callbacks.clear()",
    ),
    "default arguments": (
        "def step(out=made()):\n    pass",
        "world.step.__defaults__[0]",
        ("module-global", "", None),
        "step.__defaults__ = None",
    ),
    "a bounded functools cache": (
        "@functools.lru_cache\ndef positional(n):\n    return made()\npositional(3)",
        "functools.lru_cache of positional",
        ("cache", "functools._lru_cache_wrapper", 1),
        "positional.cache_clear()",
    ),
    "an unbounded functools cache": (
        (
            "class Net:\n    @staticmethod\n    @functools.cache\n    def positional(n):\n"
            "        return [made()]\nNet.positional(3), Net.positional(4)"
        ),
        "functools.lru_cache of Net.positional[0]",
        ("cache", "functools._lru_cache_wrapper", 2),
        "Net.positional.cache_clear()",
    ),
    "a kept exception": (
        (
            "errors = []\ndef step():\n    out = made()\n    raise ValueError\n"
            "try:\n    step()\nexcept ValueError as error:\n    errors.append(error)"
        ),
        "world.errors[0].__traceback__ → out in step at world.py:20",
        ("traceback", "list", 1),
        "errors.clear()",
    ),
    "the attribute of a module": (
        "model = nn.Sequential(nn.Linear(2, 2))\nmodel[0].cache = {'k': made()}",
        "world.model[0].cache['k']",
        ("instance", "dict", 1),
        "model[0].cache.clear()",
    ),
    "a buffer": (
        (
            "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.inner = nn.Linear(2, 2)\nmodel = Net()\n"
            "model.inner.register_buffer('mean', made())"
        ),
        "world.model.inner.mean",
        ("instance", "", None),
        "del model.inner.mean",
    ),
    "a forward hook": (
        (
            "model = nn.Sequential(nn.Linear(2, 2))\nkept = []\ndef add(seen):\n"
            "    def hook(module, args, out):\n        seen.append(out)\n"
            "    model[0].register_forward_hook(hook)\nadd([made()])"
        ),
        "world.model[0]._forward_hooks[{id}] → seen[0] in the closure of hook at world.py:20",
        ("hook", "list", 1),
        "model[0]._forward_hooks.clear()",
    ),
    "a hook of a tensor": (
        (
            "w = torch.zeros(2, requires_grad=True)\ndef add(out):\n"
            "    w.register_hook(lambda grad: grad + out)\nadd(made())"
        ),
        "world.w._backward_hooks[{id}] → out in the closure of <lambda> at world.py:19",
        ("hook", "collections.OrderedDict", 1),
        "w._backward_hooks.clear()",
    ),
    "an optimizer's state": (
        (
            "w = nn.Parameter(torch.zeros(2))\noptimizer = torch.optim.SGD([w], lr=0.1)\n"
            "optimizer.state[w]['mean'] = made()"
        ),
        "world.optimizer.state[<torch.nn.parameter.Parameter>]['mean']",
        ("optimizer", "dict", 1),
        "optimizer.state.clear()",
    ),
    "an optimizer's groups": (
        (
            "w = nn.Parameter(torch.zeros(2))\noptimizer = torch.optim.SGD([w], lr=0.1)\n"
            "optimizer.param_groups[0]['kept'] = made()"
        ),
        "world.optimizer.param_groups[0]['kept']",
        ("optimizer", "dict", None),
        "del optimizer.param_groups[0]['kept']",
    ),
    "a queue": (
        "waiting = queue.Queue()\nwaiting.put(made())",
        "world.waiting.queue[0]",
        ("thread", "collections.deque", 1),
        "waiting.get()",
    ),
    "a value of a thread": (
        "of_thread = threading.local()\nof_thread.kept = [made()]",
        "world.of_thread.kept[0]",
        ("thread", "list", 1),
        "del of_thread.kept",
    ),
    "a context variable": (
        "kept = contextvars.ContextVar('kept')\ntoken = kept.set([made()])",
        "ContextVar 'kept'[0]",
        ("thread", "list", 1),
        "kept.reset(token)",
    ),
    "a generator that waits": (
        "def batches():\n    seen = [made()]\n    yield\nrunning = batches()\nnext(running)",
        "world.running → seen[0] in generator batches at world.py:17",
        ("generator", "list", 1),
        "running.close()",
    ),
    "a coroutine that waits": (
        (
            "@types.coroutine\ndef pause():\n    yield\nasync def fetch():\n    got = made()\n"
            "    await pause()\nrunning = fetch()\nrunning.send(None)"
        ),
        "world.running → got in coroutine fetch at world.py:20",
        ("generator", "", None),
        "running.close()",
    ),
    "a partial": (
        "later = functools.partial(print, made())",
        "world.later.args[0]",
        ("module-global", "", None),
        "del later",
    ),
    "a bound method": (
        (
            "def build():\n    one = Holder()\n    one.kept = made()\n"
            "    return types.MethodType(print, one)\nmethod = build()"
        ),
        "world.method.__self__.kept",
        ("instance", "", None),
        "del method",
    ),
    "a deque": (
        "recent = collections.deque([1, 2], maxlen=5)\nrecent.append({'out': made()})",
        "world.recent[2]['out']",
        ("module-global", "collections.deque", 3),
        "recent.clear()",
    ),
    "a named tuple": (
        "Pair = collections.namedtuple('Pair', 'out label')\npairs = {(1, 'a'): Pair(made(), 2)}",
        "world.pairs[(1, 'a')].out",
        ("module-global", "dict", 1),
        "pairs.clear()",
    ),
    "a set": (
        "seen = {made()}",
        "world.seen → a member",
        ("module-global", "set", 1),
        "seen.clear()",
    ),
    "the key of a dict": (
        "seen = {made(): 1}",
        "world.seen → one of its keys",
        ("module-global", "dict", 1),
        "seen.clear()",
    ),
    "an array of objects": (
        "grid = np.empty((2, 3), object)\ngrid[1, 2] = made()",
        "world.grid[1, 2]",
        ("module-global", "", None),
        "grid[1, 2] = None",
    ),
    "an array that looks into a tensor": (
        "arrays = {'a': torch.zeros(2).numpy()}\nwatched(arrays['a'].base)",
        "world.arrays['a'].base",
        ("module-global", "dict", 1),
        "arrays.clear()",
    ),
    "an iterator": (
        "again = [itertools.chain((made(),), (1,))]",
        "world.again[0] → its tuple_iterator → its tuple[0][0]",
        ("module-global", "list", 1),
        "again.clear()",
    ),
    "a gradient": (
        "w = torch.zeros(2, requires_grad=True)\nw.grad = made()",
        "world.w.grad",
        ("module-global", "", None),
        "w.grad = None",
    ),
    "a view": (
        "heads = [made()[:1]]",
        "world.heads[0]._base",
        ("module-global", "list", 1),
        "heads.clear()",
    ),
    "what a graph saved": (
        "w = torch.zeros(2, requires_grad=True)\ntotal = ((w * made()) + 1).sum()",
        "world.total.grad_fn → 'other' saved by MulBackward0",
        ("context", "", None),
        "del total",
    ),
    "the ctx of an autograd function": (
        (
            "class Scale(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.scale = made()\n        return x * 2\n    @staticmethod\n"
            "    def backward(ctx, grad):\n        return grad\n"
            "losses = [Scale.apply(torch.zeros(2, requires_grad=True)).sum()]"
        ),
        "world.losses[0].grad_fn → … → scale on the ctx of Scale",
        ("context", "list", 1),
        "losses.clear()",
    ),
    "an exception's arguments": (
        "last = ValueError(made())",
        "world.last.args[0]",
        ("module-global", "", None),
        "del last",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_holder_is_named_in_the_users_words_and_lets_go_when_it_is_cut(
    world: World, name: str
) -> None:
    source, expected, (kind, container, length), cut = CASES[name]
    module = world(source)
    found = of(module)
    hook = next((key for key in _hook_ids(module)), 0)
    assert [text(chain) for chain in found] == [expected.replace("{id}", str(hook))]
    assert found[0].kind == kind
    assert found[0].container == container
    if length is not None:
        assert found[0].container_len == length
    assert module.ref() is not None
    exec(cut, module.__dict__)  # noqa: S102
    assert module.ref() is None, "something else holds it: the search itself, or a missed holder"


def _hook_ids(module: ModuleType) -> Iterator[int]:
    """The keys of the hooks that a program has set."""
    model = getattr(module, "model", ())
    for thing in (getattr(module, "w", None), *(model if hasattr(model, "__iter__") else ())):
        for name in ("_backward_hooks", "_forward_hooks"):
            yield from getattr(thing, name, None) or ()


def test_a_local_of_a_function_that_runs_is_named_by_its_function(world: World) -> None:
    module = world(
        "def main(look):\n    losses = [torch.zeros(1), made()]\n    found = look()\n"
        "    losses.clear()\n    return found, ref()\n"
    )
    found, left = module.main(lambda: of(module))
    assert [text(chain) for chain in found] == ["losses[1] in main at world.py:17"]
    assert (found[0].kind, found[0].container, found[0].container_len) == ("frame", "list", 2)
    assert left is None


def test_looking_at_a_running_function_keeps_none_of_its_locals(world: World) -> None:
    module = world("def main(look):\n    out = made()\n    look()\n    del out\n    return ref()\n")
    assert module.main(lambda: of(module)) is None


def test_what_a_program_has_asked_of_its_locals_stays_with_it(world: World) -> None:
    module = world(
        "def main(look):\n    out = made()\n    mine = locals()\n    look()\n    return mine\n"
    )
    assert module.main(lambda: of(module))["out"] is module.ref()


def test_what_exec_has_put_beside_a_functions_locals_stays(world: World) -> None:
    module = world(
        "def main(look):\n    out = made()\n    exec('extra = 3')\n"
        "    before = 'extra' in locals()\n"
        "    look()\n    return before, 'extra' in locals()\n"
    )
    before, after = module.main(lambda: of(module))
    assert before == after


def test_a_generator_that_only_a_loop_holds_is_named_by_its_own_line(world: World) -> None:
    module = world(
        "def batches():\n    seen = []\n    for _ in range(2):\n        seen.append(made())\n"
        "        yield len(seen)\ndef main(look):\n    return [look() for _ in batches()]\n"
    )
    found = module.main(lambda: of(module))
    assert [text(each[0]) for each in found] == [
        "seen[0] in generator batches at world.py:17",
        "seen[1] in generator batches at world.py:17",
    ]


def test_a_local_of_another_thread_is_found(world: World) -> None:
    module = world(
        "begun, end = threading.Event(), threading.Event()\ndef work():\n    kept = [made()]\n"
        "    begun.set()\n    end.wait()\n    kept.clear()\n"
    )
    thread = threading.Thread(target=module.work)
    thread.start()
    module.begun.wait()
    found = of(module)
    module.end.set()
    thread.join()
    assert [text(chain) for chain in found] == ["kept[0] in work at world.py:18"]
    assert module.ref() is None


def test_a_task_that_waits_is_reached_through_its_loop(world: World) -> None:
    module = world(
        "async def fetch(look):\n    got = [made()]\n    await asyncio.sleep(0)\n    return got\n"
        "async def main(look):\n    task = asyncio.ensure_future(fetch(look))\n"
        "    await asyncio.sleep(0)\n    found = look()\n    await task\n    return found\n"
        "def run(look):\n    return asyncio.run(main(look))\n"
    )
    found = module.run(lambda: of(module))
    assert text(found[0]) == (
        "task in main at world.py:21 → got[0] in coroutine fetch at world.py:17"
    )
    assert found[0].kind == "generator"


def test_each_direct_holder_has_its_own_chain_the_shortest_first(world: World) -> None:
    module = world(
        "one = made()\nbox = Holder()\nbox.inner = Holder()\nbox.inner.kept = [one]\nlast = one\n"
        "del one\n"
    )
    assert [text(chain) for chain in of(module)] == ["world.last", "world.box.inner.kept[0]"]
    del module.last
    assert module.ref() is not None
    module.box.inner.kept.clear()
    assert module.ref() is None


def test_no_more_chains_are_given_than_wanted(world: World) -> None:
    module = world("one = made()\nmany = [[one] for _ in range(9)]\ndel one\n")
    assert [len(of(module, limit)) for limit in (1, 2, 5)] == [1, 2, 5]


def test_several_objects_are_answered_in_their_own_order(world: World) -> None:
    module = world("history = [torch.zeros(1) for _ in range(9)]\n")
    found = chains([module.history[7], module.history[2]])
    assert [[text(chain) for chain in each] for each in found] == [
        ["world.history[7]"],
        ["world.history[2]"],
    ]


def test_the_program_comes_before_a_library_that_is_nearer(world: World) -> None:
    import colorsys

    module = world("a = Holder()\na.b = Holder()\na.b.kept = [made()]\n")
    vars(colorsys)["_kept"] = module.a.b.kept
    try:
        assert [text(chain) for chain in of(module)] == ["world.a.b.kept[0]"]
    finally:
        del vars(colorsys)["_kept"]


def test_a_library_that_alone_holds_it_is_named(world: World) -> None:
    import colorsys

    module = world("kept = made()\n")
    vars(colorsys)["_kept"] = [module.kept]
    del module.kept
    try:
        assert [text(chain) for chain in of(module)] == ["colorsys._kept[0]"]
    finally:
        del vars(colorsys)["_kept"]
    assert module.ref() is None


def test_a_hidden_state_of_an_earlier_step_hangs_on_the_one_that_the_program_uses(
    world: World,
) -> None:
    module = world(
        "net = nn.GRU(2, 2)\nbox = Holder()\nbox.state = None\nfor n in range(4):\n"
        "    out, box.state = net(torch.zeros(1, 1, 2), box.state)\n    del out\n"
        "    if n == 1:\n        watched(box.state)\n"
    )
    (chain,) = of(module)
    assert text(chain).startswith("world.box.state.grad_fn → ")
    assert chain.kind == "context"
    module.box.state = module.box.state.detach()
    assert module.ref() is None


def test_what_a_graph_keeps_is_told_by_what_lasts_and_not_by_the_variable_of_one_step(
    world: World,
) -> None:
    module = world(
        "net = nn.GRU(2, 2)\ndef main(look):\n    box = Holder()\n    box.inner = Holder()\n"
        "    box.inner.state = None\n    for n in range(4):\n"
        "        out, box.inner.state = net(torch.zeros(1, 1, 2), box.inner.state)\n"
        "        scores = out.sum()\n        if n == 1:\n"
        "            watched(box.inner.state)\n    return look()\n"
    )
    (chain, *_) = module.main(lambda: of(module))
    assert text(chain).startswith("box.inner.state.grad_fn in main at world.py:18 → ")


def test_what_the_program_has_frozen_is_found_all_the_same(world: World) -> None:
    module = world("trainer = Holder()\ntrainer.losses = [made()]\n")
    gc.freeze()
    try:
        assert [text(chain) for chain in of(module)] == ["world.trainer.losses[0]"]
    finally:
        gc.unfreeze()
    module.trainer.losses.clear()
    assert module.ref() is None


def test_neither_the_callers_objects_nor_profkits_are_holders(world: World) -> None:
    module = world("history = [made()]\n")
    own = {"kept": [module.ref()]}
    ours = type("Watcher", (), {"__module__": "profkit.capture.memory.watch"})()
    ours.kept = module.ref()
    found = chains([module.ref()], own={id(own["kept"])})[0]
    assert [text(chain) for chain in found] == ["world.history[0]"]


def test_a_weak_reference_is_no_holder(world: World) -> None:
    module = world(
        "history = [made()]\nweak = weakref.WeakValueDictionary({1: ref()})\n"
        "again = weakref.ref(ref(), print)\n"
    )
    assert [text(chain) for chain in of(module)] == ["world.history[0]"]


def test_what_only_an_unreachable_cycle_holds_has_no_chain(world: World) -> None:
    module = world("def leave():\n    one = Holder()\n    one.me, one.kept = one, made()\n")
    gc.disable()
    try:
        module.leave()
        assert module.ref() is not None
        assert of(module) == ()
    finally:
        gc.enable()


def test_a_linked_list_is_followed_and_named_at_both_its_ends(world: World) -> None:
    module = world(
        "head = None\nfor n in range(60):\n    node = Holder()\n    node.next = head\n"
        "    if n == 0:\n        node.kept = made()\n    head = node\ndel node\n"
    )
    ((chain,),) = chains([module.ref()], budget_s=60.0)
    assert chain.parts[:3] == ("world", ".head", ".next")
    assert chain.parts[-2:] == (".next", ".kept")
    assert " … " in chain.parts


def test_a_search_without_time_ends_at_once_and_says_nothing(world: World) -> None:
    module = world("a = Holder()\na.b = Holder()\na.b.kept = [made()]\n")
    assert chains([module.ref()], budget_s=0.0) == [()]


def test_a_popular_holder_does_not_flood_the_search(world: World) -> None:
    module = world("one = Holder()\none.kept = made()\nmany = [[one] for _ in range(9_000)]\n")
    assert [text(chain) for chain in of(module)] == ["world.one.kept"]


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


def test_nothing_of_the_users_is_called(world: World) -> None:
    module = world(HOSTILE)
    found = of(module)
    assert module.calls == []
    assert [text(chain) for chain in found] == ["world.kept[1].kept[<world.Hostile>][0]"]


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
def test_a_key_is_shown_short_and_harmless(world: World, key: str, shown: str) -> None:
    module = world(f"kept = {{{key}: made()}}\n")
    (chain,) = of(module)
    assert shown.replace("…", "") in text(chain).replace("…", "") or shown in text(chain)
    assert len(text(chain)) < 100
    assert text(chain).isprintable()


steps = st.lists(st.sampled_from(["list", "dict", "tuple", "attribute", "deque"]), max_size=6)


@given(paths=st.lists(steps, min_size=1, max_size=4))
def test_every_chain_reads_as_an_expression_that_gives_the_object(paths: list[list[str]]) -> None:
    gc.freeze()  # What is there already is not looked through again for each example.
    module = ModuleType("grown")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["grown"] = module
    try:
        target = torch.zeros(1)
        for number, path in enumerate(paths):
            vars(module)[f"v{number}"] = _grown(path, target)
        seen = weakref.ref(target)
        del target
        found = chains([seen()], limit=10)[0]
        assert len(found) == len(paths)
        for chain in found:
            assert eval(text(chain), {"grown": module}) is seen()  # noqa: S307
        lengths = [len(chain.parts) for chain in found]
        assert lengths == sorted(lengths)
        for chain in found:
            exec(f"del {''.join(chain.parts[:2])}", {"grown": module})  # noqa: S102
        assert seen() is None
    finally:
        gc.unfreeze()
        del sys.modules["grown"]


class Box:
    """Holds one thing."""

    kept: Any


def _grown(path: list[str], target: object) -> object:
    """A target within containers, the innermost first."""
    from collections import deque

    held: Any = [target]
    for step in path:
        if step == "attribute":
            box = Box()
            box.kept = held
            held = box
        else:
            held = {
                "list": lambda one: [0, one, 2],
                "dict": lambda one: {"a": 0, (1, "b"): one},
                "tuple": lambda one: (one, [3]),
                "deque": lambda one: deque([4, 5, one]),
            }[step](held)
    return held
