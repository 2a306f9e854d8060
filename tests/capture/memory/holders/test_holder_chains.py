"""Reference chains in programs with a known holder; cutting it frees the object."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from profkit.capture.process.torch_features import shows_saved_tensors
from tests.capture.memory.saved_tensors import REASON
from tests.capture.memory.worlds import World, of, text

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
        "world.step → out in the defaults of step at world.py:17",
        ("module-global", "", None),
        "step.__defaults__ = None",
    ),
    "a default argument that collects": (
        "def log(x, y=None, seen=[made()], *, more=()):\n    pass",
        "world.log → seen[0] in the defaults of log at world.py:17",
        ("module-global", "list", 1),
        "log.__defaults__[1].clear()",
    ),
    "a default of a keyword-only argument": (
        "def log(x, *, seen=[made()]):\n    pass",
        "world.log → seen[0] in the defaults of log at world.py:17",
        ("module-global", "list", 1),
        "log.__kwdefaults__.clear()",
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
    "a stored exception": (
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
        ("queue", "queue.Queue", 1),
        "waiting.get()",
    ),
    "a finalizer": (
        "one = Holder()\ndef give_back(out):\n    pass\nweakref.finalize(one, give_back, made())",
        "weakref.finalize(<Holder>, give_back)[0]",
        ("class", "", None),
        "one = None",
    ),
    "a finalizer with an object of the program": (
        (
            "one, two = Holder(), Holder()\ntwo.out = made()\n"
            "weakref.finalize(one, print, two)\ntwo = None"
        ),
        "weakref.finalize(<Holder>, builtin_function_or_method)[0].out",
        ("class", "", None),
        "one = None",
    ),
    "a queue in C": (
        "waiting = queue.SimpleQueue()\nwaiting.put(made())",
        "world.waiting → an item",
        ("queue", "_queue.SimpleQueue", 1),
        "waiting.get()",
    ),
    "the work of an executor": (
        (
            "import concurrent.futures\nexecutor = concurrent.futures.ThreadPoolExecutor(1)\n"
            "free = threading.Event()\nfirst = executor.submit(free.wait)\n"
            "while first.running() is False: pass\n"
            "pending = executor.submit(len, made())"
        ),
        "world.executor._work_queue → an item.args[0]",
        ("executor", "concurrent.futures.thread.ThreadPoolExecutor", 1),
        "free.set(); pending.result(); executor.shutdown()",
    ),
    "the result of a finished task": (
        (
            "async def result():\n    return made()\n"
            "async def finished():\n    task = asyncio.ensure_future(result())\n"
            "    await task\n    return task\n"
            "tasks = [asyncio.run(finished())]"
        ),
        "world.tasks[0].result()",
        ("module-global", "list", 1),
        "tasks.clear()",
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
    "a suspended generator": (
        "def batches():\n    seen = [made()]\n    yield\nrunning = batches()\nnext(running)",
        "world.running → seen[0] in generator batches at world.py:17",
        ("generator", "list", 1),
        "running.close()",
    ),
    "a suspended coroutine": (
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
    "an array that is a view of a tensor": (
        "arrays = {'a': torch.zeros(2).numpy()}\ntracked(arrays['a'].base)",
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
    "an endless iterator": (
        "again = itertools.cycle([(made(), 1)])\nnext(again)",
        "world.again → the items that itertools.cycle saves[0][0]",
        ("module-global", "list", 1),
        "del again",
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
    "a tensor saved by a graph": (
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
def test_a_holder_is_named_and_cutting_it_frees_the_object(world: World, name: str) -> None:
    if name == "a tensor saved by a graph" and not shows_saved_tensors():
        pytest.skip(REASON)
    source, expected, (kind, container, length), cut = CASES[name]
    module = world(source)
    chains = of(module)

    hook = next((key for key in _hook_ids(module)), 0)
    assert [text(chain) for chain in chains] == [expected.replace("{id}", str(hook))]
    assert chains[0].kind == kind
    assert chains[0].container == container

    if length is not None:
        assert chains[0].container_len == length
    assert module.ref() is not None
    exec(cut, module.__dict__)  # noqa: S102
    assert module.ref() is None, (
        "something else holds it: the search itself, or a holder that was not found"
    )


def _hook_ids(module: ModuleType) -> Iterator[int]:
    """Yield the keys of the hooks that a program has registered."""
    model = getattr(module, "model", ())
    for thing in (getattr(module, "w", None), *(model if hasattr(model, "__iter__") else ())):
        for name in ("_backward_hooks", "_forward_hooks"):
            yield from getattr(thing, name, None) or ()
