"""What a search for holders finds, whoever holds it, and what it leaves as it was."""

import gc
import threading

from profkit.capture.memory.holders.holder_chains import chains
from tests.capture.memory.worlds import World, of, text


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
    found = chains([module.history[7], module.history[2]], budget_s=60.0)
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
    ours = type("Watcher", (), {"__module__": "profkit.capture.memory.monitor.leak_monitor"})()
    ours.kept = module.ref()
    found = chains([module.ref()], own={id(own["kept"])}, budget_s=60.0)[0]
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
