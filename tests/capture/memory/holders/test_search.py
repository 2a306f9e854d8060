"""Holders of all kinds are found, and the search has no side effects."""

import gc
import inspect
import threading

import pytest
import torch

from profkit.capture.memory.holders import native_refs
from profkit.capture.memory.holders.holder_chains import find_chains
from profkit.capture.process.objects import has_frozen_objects
from tests.capture.memory.saved_tensors import needs_saved_tensors
from tests.capture.memory.worlds import World, of, text


def test_a_local_of_a_running_function_is_named_with_its_function(world: World) -> None:
    module = world(
        "def main(search):\n    losses = [torch.zeros(1), made()]\n    found = search()\n"
        "    losses.clear()\n    return found, ref()\n"
    )
    chains, left = module.main(lambda: of(module))
    assert [text(chain) for chain in chains] == ["losses[1] in main at world.py:17"]
    assert (chains[0].kind, chains[0].container, chains[0].container_len) == ("frame", "list", 2)
    assert left is None


def test_a_search_keeps_no_locals_of_running_functions_alive(world: World) -> None:
    module = world(
        "def main(search):\n    out = made()\n    search()\n    del out\n    return ref()\n"
    )
    assert module.main(lambda: of(module)) is None


def test_a_locals_dict_that_the_program_holds_is_unchanged(world: World) -> None:
    module = world(
        "def main(search):\n    out = made()\n    mine = locals()\n    search()\n    return mine\n"
    )
    assert module.main(lambda: of(module))["out"] is module.ref()


def test_names_that_exec_added_to_locals_are_unchanged(world: World) -> None:
    module = world(
        "def main(search):\n    out = made()\n    exec('extra = 3')\n"
        "    before = 'extra' in locals()\n"
        "    search()\n    return before, 'extra' in locals()\n"
    )
    before, after = module.main(lambda: of(module))
    assert before == after


def test_a_generator_that_only_a_loop_holds_is_named_with_its_line(world: World) -> None:
    module = world(
        "def batches():\n    seen = []\n    for _ in range(2):\n        seen.append(made())\n"
        "        yield len(seen)\ndef main(search):\n    return [search() for _ in batches()]\n"
    )
    chains = module.main(lambda: of(module))
    assert [text(chain[0]) for chain in chains] == [
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
    chains = of(module)
    module.end.set()
    thread.join()
    assert [text(chain) for chain in chains] == ["kept[0] in work at world.py:18"]
    assert module.ref() is None


def test_a_suspended_task_is_found_through_its_event_loop(world: World) -> None:
    module = world(
        "async def fetch(search):\n    got = [made()]\n    await asyncio.sleep(0)\n    return got\n"
        "async def main(search):\n    task = asyncio.ensure_future(fetch(search))\n"
        "    await asyncio.sleep(0)\n    found = search()\n    await task\n    return found\n"
        "def run(search):\n    return asyncio.run(main(search))\n"
    )
    chains = module.run(lambda: of(module))
    assert text(chains[0]) == (
        "task in main at world.py:21 → got[0] in coroutine fetch at world.py:17"
    )
    assert chains[0].kind == "generator"


def test_each_direct_holder_has_a_chain_the_shortest_first(world: World) -> None:
    module = world(
        "one = made()\nbox = Holder()\nbox.inner = Holder()\nbox.inner.kept = [one]\nlast = one\n"
        "del one\n"
    )
    assert [text(chain) for chain in of(module)] == ["world.last", "world.box.inner.kept[0]"]
    del module.last
    assert module.ref() is not None
    module.box.inner.kept.clear()
    assert module.ref() is None


def test_the_number_of_chains_is_limited(world: World) -> None:
    module = world("one = made()\nmany = [[one] for _ in range(9)]\ndel one\n")
    assert [len(of(module, limit)) for limit in (1, 2, 5)] == [1, 2, 5]


def test_several_targets_are_returned_in_order(world: World) -> None:
    module = world("history = [torch.zeros(1) for _ in range(9)]\n")
    chains = find_chains([module.history[7], module.history[2]], budget_s=60.0)
    assert [[text(chain) for chain in chains_of] for chains_of in chains] == [
        ["world.history[7]"],
        ["world.history[2]"],
    ]


def test_a_holder_in_the_program_comes_before_a_nearer_one_in_a_library(world: World) -> None:
    import colorsys

    module = world("a = Holder()\na.b = Holder()\na.b.kept = [made()]\n")
    vars(colorsys)["_kept"] = module.a.b.kept
    try:
        assert [text(chain) for chain in of(module)] == ["world.a.b.kept[0]"]
    finally:
        del vars(colorsys)["_kept"]


@pytest.mark.usefixtures("all_objects")
def test_a_library_is_named_if_it_is_the_only_holder(world: World) -> None:
    import colorsys

    module = world("kept = made()\n")
    vars(colorsys)["_kept"] = [module.kept]
    del module.kept
    try:
        assert [text(chain) for chain in of(module)] == ["colorsys._kept[0]"]
    finally:
        del vars(colorsys)["_kept"]
    assert module.ref() is None


@needs_saved_tensors
def test_a_hidden_state_of_an_earlier_step_is_held_by_the_graph_of_the_current_one(
    world: World,
) -> None:
    module = world(
        "net = nn.GRU(2, 2)\nbox = Holder()\nbox.state = None\nfor n in range(4):\n"
        "    out, box.state = net(torch.zeros(1, 1, 2), box.state)\n    del out\n"
        "    if n == 1:\n        tracked(box.state)\n"
    )
    (chain,) = of(module)
    assert text(chain).startswith("world.box.state.grad_fn → ")
    assert chain.kind == "context"
    module.box.state = module.box.state.detach()
    assert module.ref() is None


@needs_saved_tensors
def test_a_saved_tensor_is_named_by_the_lasting_holder_and_not_by_a_variable_of_the_step(
    world: World,
) -> None:
    module = world(
        "net = nn.GRU(2, 2)\ndef main(search):\n    box = Holder()\n    box.inner = Holder()\n"
        "    box.inner.state = None\n    for n in range(4):\n"
        "        out, box.inner.state = net(torch.zeros(1, 1, 2), box.inner.state)\n"
        "        scores = out.sum()\n        if n == 1:\n"
        "            tracked(box.inner.state)\n    return search()\n"
    )
    (chain, *_) = module.main(lambda: of(module))
    assert text(chain).startswith("box.inner.state.grad_fn in main at world.py:18 → ")


def test_frozen_objects_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_refs, "has_frozen_objects", has_frozen_objects)
    module = world("trainer = Holder()\ntrainer.losses = [made()]\n")
    gc.freeze()
    try:
        assert [text(chain) for chain in of(module)] == ["world.trainer.losses[0]"]
    finally:
        gc.unfreeze()
    module.trainer.losses.clear()
    assert module.ref() is None


def test_objects_of_the_caller_and_of_profkit_are_not_holders(world: World) -> None:
    module = world("history = [made()]\n")
    own_holder = {"kept": [module.ref()]}
    ours = type("Monitor", (), {"__module__": "profkit.capture.memory.monitor.leak_monitor"})()
    ours.kept = module.ref()
    chains = find_chains([module.ref()], skip={id(own_holder["kept"])}, budget_s=60.0)[0]
    assert [text(chain) for chain in chains] == ["world.history[0]"]


def test_a_weak_reference_is_not_a_holder(world: World) -> None:
    module = world(
        "history = [made()]\nweak = weakref.WeakValueDictionary({1: ref()})\n"
        "again = weakref.ref(ref(), print)\n"
    )
    assert [text(chain) for chain in of(module)] == ["world.history[0]"]


def test_an_object_in_an_unreachable_cycle_has_no_chain(world: World) -> None:
    module = world("def leave():\n    one = Holder()\n    one.me, one.kept = one, made()\n")
    gc.disable()
    try:
        module.leave()
        assert module.ref() is not None
        assert of(module) == ()
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_linked_list_is_followed_and_named_at_both_its_ends(world: World) -> None:
    module = world(
        "head = None\nfor n in range(60):\n    node = Holder()\n    node.next = head\n"
        "    if n == 0:\n        node.kept = made()\n    head = node\ndel node\n"
    )
    ((chain,),) = find_chains([module.ref()], budget_s=60.0)
    assert chain.parts[:3] == ("world", ".head", ".next")
    assert chain.parts[-2:] == (".next", ".kept")
    assert " … " in chain.parts


def test_a_search_without_budget_returns_no_chains(world: World) -> None:
    module = world("a = Holder()\na.b = Holder()\na.b.kept = [made()]\n")
    assert find_chains([module.ref()], budget_s=0.0) == [()]


def test_a_tensor_within_a_wrapper_of_torch_func_is_held_by_what_has_the_wrapper() -> None:
    weight = torch.ones(3, requires_grad=True)
    pull_back = torch.func.vjp(lambda value: value * weight, torch.ones(3))[1]
    cells = inspect.getclosurevars(pull_back).nonlocals
    held = torch._C._functorch.get_unwrapped(cells["flat_primals_out"][0])
    del cells
    (chains,) = find_chains([held])
    assert "pull_back" in text(chains[0])
    assert "flat_primals_out[0]" in text(chains[0]).replace(" → ", "")


def test_an_object_with_many_referrers_does_not_flood_the_search(world: World) -> None:
    module = world("one = Holder()\none.kept = made()\nmany = [[one] for _ in range(9_000)]\n")
    assert [text(chain) for chain in of(module)] == ["world.one.kept"]
