"""The weights of flame graphs match sums that are computed independently."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.index.intervals import union
from profkit.model.events import NO_ROW
from profkit.model.flame import FLAMES, Flame, depths
from profkit.model.snapshot import MemorySnapshot
from profkit.present.flames import find_idle_threads, flames
from profkit.readers.open import load
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import ReferenceBlock
from tests.catalogue.random_programs import briefly, played, programs
from tests.traces import load_trace, read_context

TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*/*.gz"))


def made(ctx: Context, name: str) -> Flame:
    flame = next(iter(flames(ctx, (name,))), None)
    assert flame is not None
    return flame


def lines(found: Flame) -> dict[str, int]:
    """Return own weights by the names from the top down, as in folded stacks."""
    weights: Counter[str] = Counter()
    for node in range(len(found)):
        if found.own[node]:
            path = ";".join(site.name for site in found.stack(node))
            weights[path] += int(found.own[node])
    return dict(weights)


def is_sound(found: Flame) -> None:
    parents = found.parent[found.parent != NO_ROW]
    assert (parents < np.flatnonzero(found.parent != NO_ROW)).all()
    assert (found.own >= 0).all()
    total = found.own.copy()
    for node in reversed(range(len(found))):
        if found.parent[node] != NO_ROW:
            total[found.parent[node]] += total[node]
    assert total.tolist() == found.total.tolist()
    assert len({(p, s) for p, s in zip(found.parent, found.site, strict=True)}) == len(found)
    assert sorted(set(found.site.tolist())) == list(range(len(found.sites)))
    assert found.depth.tolist() == depths(found.parent).tolist()


def host_ns(ctx: Context) -> int:
    """Time that the events of each thread cover, added up over threads."""
    events, rows = ctx.events, ctx.tree.rows
    lanes = events.lane[rows]
    return sum(
        union(events.ts_ns[rows[lanes == lane]], events.end_ns[rows[lanes == lane]]).total_ns
        for lane in set(lanes.tolist())
    )


@briefly
@given(program=programs, steps=st.booleans())
def test_the_weights_of_a_random_program_add_up_to_recorded_time(
    tmp_path: Path,
    program: list[list[int]],
    steps: bool,  # noqa: FBT001
) -> None:
    b = played(program, steps=steps)
    ctx = read_context(b, tmp_path)
    work_ns = sum(e.dur_ns or 0 for e in b.events if e.cat in {"kernel", "gpu_memcpy"})
    for flame in flames(ctx):
        is_sound(flame)
        if flame.name.startswith("host"):
            assert flame.weight == host_ns(ctx)
        if flame.name.startswith("device"):
            assert flame.weight == work_ns


def test_host_time_goes_along_the_stack_to_the_innermost_call(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 3, "main"):
            b.advance(500)
            with b.frame("net.py", 9, "forward"):
                b.compute("aten::mm", 2_000)

    flame = made(read_context(b, tmp_path), "host-stack")
    assert lines(flame) == {
        "thread 1000;steps;main": 1_000,
        "thread 1000;steps;main;forward;aten::mm": 4_000,
    }
    assert [site.kind for site in flame.stack(len(flame) - 1)] == [
        "thread",
        "step",
        "python",
        "python",
        "op",
    ]

    by_line = made(read_context(b, tmp_path), "host-line")
    assert lines(by_line) == {
        "thread 1000;main;main": 1_000,
        "thread 1000;forward;forward;aten::mm": 4_000,
    }


def test_device_time_belongs_to_the_stack_at_the_launch(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 3, "main"), b.module("Net"), b.module("Linear", 4):
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000)
        b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=5_000, stream=13)
    b.kernel("orphan", 1_000)
    ctx = read_context(b, tmp_path)

    launch = "main;Net_0;Linear_4"
    assert lines(made(ctx, "device-stack")) == {
        f"{launch};aten::mm;cudaLaunchKernel;gemm": 70_000,
        f"{launch};aten::add;cudaLaunchKernel;add": 5_000,
        "launch not recorded;orphan": 1_000,
    }
    assert lines(made(ctx, "device-module")) == {
        "cuda:0;Net_0;Linear_4;aten::mm;gemm": 70_000,
        "cuda:0;Net_0;Linear_4;aten::add;add": 5_000,
        "cuda:0;outside modules;orphan": 1_000,
    }
    assert lines(made(ctx, "device-line")) == {
        "cuda:0;main;aten::mm;gemm": 70_000,
        "cuda:0;main;aten::add;add": 5_000,
        "cuda:0;library code;orphan": 1_000,
    }


def test_work_of_the_backward_pass_belongs_to_the_module_of_its_forward(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.module("Net"), b.module("Linear"), b.op("aten::mm", sequence=7):
        pass
    with b.thread(2000), b.op("MmBackward0", sequence=7) as event:
        assert event.args is not None
        event.args["Fwd thread id"] = 1
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000)
    flame = made(read_context(b, tmp_path), "device-module")
    assert lines(flame) == {"cuda:0;Net_0;Linear_0;aten::mm;gemm": 70_000}


def test_memory_at_the_peak_belongs_to_its_allocation_site(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, memory=True)
    with b.frame("train.py", 3, "main"), b.op("aten::empty"):
        b.advance(1_000)
        first = b.alloc(4_096)
        b.alloc(1_024)
        b.advance(1_000)
        b.free(first)
        b.alloc(2_048)
        b.advance(1_000)
    flame = made(read_context(b, tmp_path), "memory-stack")
    assert flame.unit == "bytes"
    assert lines(flame) == {"cuda:0;main;main;aten::empty": 5_120}


def test_memory_of_a_snapshot_adds_up_to_its_peak(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    highest = 0
    with b.frame("train.py", 3, "main"):
        with b.frame("net.py", 9, "forward"):
            kept = [b.alloc(3 << 20) for _ in range(5)]
            highest = b.moment().active_bytes
        b.free(*kept[:3])
        b.alloc(1 << 20)

    snapshot = load(b.write(tmp_path / "s.pickle"))
    assert isinstance(snapshot, MemorySnapshot)

    ctx = Context(snapshot=snapshot)
    by_stack = made(ctx, "memory-stack")
    assert lines(by_stack) == {"cuda:0;main;forward": highest}
    assert made(ctx, "memory-use").weight == highest
    for flame in flames(ctx):
        is_sound(flame)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    turns=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5_000_000)), min_size=1, max_size=30),
    max_entries=st.sampled_from([6, 12, 1000]),
)
def test_the_flames_of_a_random_snapshot_add_up_to_its_peak(
    tmp_path: Path, turns: list[tuple[float, int]], max_entries: int
) -> None:
    b = SnapshotBuilder(max_entries=max_entries)
    live: list[ReferenceBlock] = []
    with b.frame("train.py", 3, "main"):
        for chance, n_bytes in turns:
            if chance < 0.5 or not live:
                live.append(b.alloc(n_bytes))
                continue
            block = live.pop(n_bytes % len(live))
            if chance > 0.8:
                b.record_stream(block, 3)
            b.free(block)
            if chance > 0.95:
                b.finish(3)

    snapshot = load(b.write(tmp_path / "s.pickle"))
    assert isinstance(snapshot, MemorySnapshot)

    ctx = Context(snapshot=snapshot)
    (memory,) = ctx.device_memories
    for flame in flames(ctx):
        is_sound(flame)
        assert flame.weight == memory.replay.active_bytes.max()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_recorded_traces_have_flames_by_line(path: Path) -> None:
    ctx = Context(trace=load_trace(path))
    by_line = made(ctx, "host-line")
    is_sound(by_line)
    assert by_line.weight == made(ctx, "host-stack").weight == host_ns(ctx)
    files = {site.frame.file for site in by_line.sites if site.kind == "line" and site.frame}
    assert any(Path(file).suffix == ".py" for file in files), json.dumps(sorted(files))


def test_a_recording_without_events_has_no_flame() -> None:
    assert flames(Context(), FLAMES) == ()


def test_threads_that_only_wait_are_idle(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    with b.step(), b.frame("train.py", 3, "main"):
        b.compute("aten::mm", 100_000)
    with b.thread(2), b.frame("threading.py", 1002, "_bootstrap"):
        b.advance(1_000)
        with b.frame("threading.py", 359, "wait"), b.frame("threading.py", 300, "_check"):
            b.advance(99_000)
    with b.thread(3), b.frame("worker.py", 5, "busy"):
        b.advance(50_000)
        with b.frame("queue.py", 171, "get"):
            b.advance(50_000)
    flame = made(read_context(b, tmp_path), "host-stack")
    assert [flame.sites[flame.site[node]].name for node in find_idle_threads(flame)] == ["thread 2"]


def test_nodes_begin_with_the_first_event_below_them(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for name in ("second", "first", "second"):
        with b.frame("train.py", 3, name):
            b.compute("aten::mm", 1_000)
    ctx = read_context(b, tmp_path)
    flame, events = made(ctx, "host-stack"), ctx.events
    first: dict[tuple[str, ...], int] = {}
    for row in range(len(events)):
        path, at = [], row
        while at != NO_ROW:
            path.append(events.name_of(at).rpartition(": ")[2])
            at = int(ctx.tree.parent[at])
        for n in range(len(path) + 1):
            key = ("thread 1000", *reversed(path[len(path) - n :]))
            first[key] = min(first.get(key, int(events.ts_ns[row])), int(events.ts_ns[row]))
    assert flame.first_ns is not None

    begins = {
        tuple(site.name for site in flame.stack(node)): int(flame.first_ns[node])
        for node in range(len(flame))
    }
    assert begins == first
