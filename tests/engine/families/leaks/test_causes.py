"""Each leak is reported by one rule: the one whose fix frees it."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.engine.families.leaks.causes import (
    Cause,
    cause_of,
    find_leaks,
    graph_share,
    is_named_cache,
    main_chain,
    merge_leaks,
)
from profkit.engine.registry import rules
from profkit.model.live_memory import Chain, Graph, Leak, TensorShape
from profkit.testing import LiveBuilder

KIB = 1024
CAUSES: tuple[Cause, ...] = (
    "retained-graph", "growing-container", "forgotten-hook", "uncollected-cycle",
    "kept-traceback", "unbounded-cache", "host-growth", "pinned-growth",
)  # fmt: skip


def chain(kind: str = "module-global", *parts: str) -> Chain:
    parts = parts or ("__main__.kept", "[3]")
    name = "".join(itertools.takewhile(lambda part: part[:1] not in {"[", " "}, parts))
    return Chain(kind, parts, "list", 200, name)  # type: ignore[arg-type]


def growth(**changes: object) -> Leak:
    plain = Leak("tensors", "cpu", 64 * KIB, 12_800 * KIB, 200, 1, 200, chains=(chain(),))
    return replace(plain, **changes)  # type: ignore[arg-type]


THREE = TensorShape("float32", (3,), 4)
SCALAR = TensorShape("float32", (), 4)
LARGE = Graph(1400, 12_000 * KIB, "NllLossBackward0")
NODE = Graph(200, 0, "ViewBackward0")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "growing-container"),
        ({"chains": ()}, "growing-container"),
        ({"graph": LARGE}, "retained-graph"),
        ({"kind": "graph", "n": 1}, "retained-graph"),
        ({"graph": NODE}, "growing-container"),
        ({"device": "cuda:0"}, "growing-container"),
        ({"device": "cuda:0", "graph": LARGE}, "retained-graph"),
        ({"device": "pinned"}, "pinned-growth"),
        ({"kind": "host", "device": "host"}, "host-growth"),
        ({"kind": "host", "device": "host", "chains": ()}, "host-growth"),
        ({"kind": "garbage", "chains": (), "cycle": ("Net", "dict", "Net")}, "uncollected-cycle"),
        ({"kind": "garbage", "chains": (chain("hook"),)}, "uncollected-cycle"),
        ({"chains": (chain("traceback"),), "graph": LARGE}, "kept-traceback"),
        ({"chains": (chain("hook"),), "graph": LARGE}, "forgotten-hook"),
        ({"chains": (chain("hook"),), "kind": "graph"}, "forgotten-hook"),
        ({"chains": (chain("cache"),)}, "unbounded-cache"),
        ({"chains": (chain("cache"),), "kind": "host"}, "unbounded-cache"),
        ({"chains": (chain("instance", "__main__.net", "._cache", "['k']"),)}, "unbounded-cache"),
        ({"chains": (chain("closure", "memo", "[3]", " in the closure of f"),)}, "unbounded-cache"),
        ({"chains": (chain("unknown"), chain("hook"))}, "forgotten-hook"),
    ],
)
def test_the_cause_is_what_has_to_change(changes: dict[str, object], cause: str) -> None:
    assert cause_of(growth(**changes)) == cause


def test_a_cache_that_is_mostly_graph_is_a_retained_graph() -> None:
    cache = chain("module-global", "__main__.loss_cache", "[3]")
    assert cause_of(growth(chains=(cache,), graph=LARGE)) == "retained-graph"
    little = Graph(200, 2_000 * KIB, "MulBackward0")
    assert cause_of(growth(chains=(cache,), graph=little)) == "unbounded-cache"


def test_scalars_retain_graph_nodes_even_without_saved_tensors() -> None:
    losses = growth(bytes=200 * 4, graph=Graph(200 * 8, 0, "NllLossBackward0"))
    assert graph_share(losses) > 0.9
    assert cause_of(losses) == "retained-graph"


def test_a_graph_that_shares_its_tensors_with_others_counts_by_its_nodes() -> None:
    assert graph_share(growth(bytes=0, graph=Graph(0, 0, ""))) == 0.0
    assert graph_share(growth(bytes=100, graph=Graph(1, 10_000, ""))) == 1.0


def test_the_main_chain_is_the_shortest_with_a_known_root() -> None:
    first, second = chain("unknown", "a list"), chain("class", "Net.seen")
    assert main_chain(growth(chains=(first, second))) is second
    assert main_chain(growth(chains=(first,))) is first
    assert main_chain(growth(chains=())) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__main__.cache", True),
        ("__main__._mask_cache", True),
        ("Net.featureCache", True),
        ("LRUCache", True),
        ("__main__.memo", True),
        ("__main__.replay_memory", False),
        ("cache_tools.history", False),
        ("__main__.cache.history", False),
        ("__main__.losses", False),
        ("", False),
    ],
)
def test_a_cache_is_recognized_by_its_name(name: str, *, expected: bool) -> None:
    assert is_named_cache(Chain("module-global", (name, "['k']"), name=name)) is expected


kinds = st.sampled_from(["tensors", "graph", "garbage", "host"])
holders = st.sampled_from(
    ["module-global", "class", "instance", "closure", "cache", "traceback", "frame", "hook",
     "thread", "generator", "context", "optimizer", "unknown"]
)  # fmt: skip
chains = st.builds(chain, holders, st.text(max_size=20), st.text(max_size=8))
graphs = st.none() | st.builds(Graph, st.integers(0, 10**6), st.integers(0, 10**12), st.text())
any_growth = st.builds(
    growth,
    kind=kinds,
    device=st.sampled_from(["cpu", "cuda:0", "pinned", "host"]),
    bytes=st.integers(0, 10**12),
    n=st.integers(0, 10**6),
    chains=st.lists(chains, max_size=3).map(tuple),
    graph=graphs,
)


@given(grown=st.lists(any_growth, max_size=12))
def test_every_leak_has_exactly_one_cause(grown: list[Leak]) -> None:
    builder = LiveBuilder(n_samples=1)
    for leak in grown:
        builder.add(leak)
    ctx = Context(live=builder.build())
    reported = [leak for cause in CAUSES for group in find_leaks(ctx, cause) for leak in group]
    assert sorted(map(id, reported)) == sorted(map(id, ctx.live.leaks if ctx.live else ()))


def test_leaks_of_one_holder_are_merged() -> None:
    mine, other_chain = chain(), chain("module-global", "__main__.others", "[3]")
    small = growth(per_step_bytes=KIB, chains=(mine,), shape=THREE, first_step=5)
    large = growth(per_step_bytes=9 * KIB, chains=(mine,), shape=SCALAR, last_step=300)
    apart = growth(per_step_bytes=20 * KIB, chains=(other_chain,))
    nobody = growth(per_step_bytes=2 * KIB, chains=())
    builder = LiveBuilder(n_samples=1)
    for leak in (small, large, apart, nobody, replace(nobody)):
        builder.add(leak)

    groups = find_leaks(Context(live=builder.build()), "growing-container")
    assert groups[:2] == [(apart,), (large, small)]
    assert groups[2:] == [(nobody,), (nobody,)]

    merged = merge_leaks(groups[1])
    assert (merged.per_step_bytes, merged.n, merged.first_step, merged.last_step) == (
        10 * KIB,
        400,
        1,
        300,
    )
    assert (merged.shape, merged.stack) == (None, large.stack)


def test_a_single_leak_is_not_changed() -> None:
    alone = growth(graph=LARGE, shape=SCALAR, nodes_per_step=7.0)
    assert merge_leaks((alone,)) == alone


def test_a_graph_counts_by_its_growth_per_step_if_known() -> None:
    seen_early = Graph(8, 48_000, "MeanBackward0")
    late = growth(per_step_bytes=36_004, bytes=97 * 36_004, n=97, graph=seen_early)
    assert graph_share(late) < 0.1
    assert graph_share(replace(late, nodes_per_step=6.0)) > 0.9


def test_every_cause_is_a_rule() -> None:
    assert set(CAUSES) <= {rule.INFO.name for rule in rules()}


def test_without_monitored_memory_there_are_no_leaks() -> None:
    assert find_leaks(Context(), "host-growth") == []
