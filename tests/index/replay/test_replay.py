"""Replays of recordings, and their critical paths."""

import os
from pathlib import Path

import numpy as np
import pytest

from profkit.api import analyze
from profkit.engine.context import Context
from profkit.engine.figures.summary import summarize
from profkit.index.replay.critical_path import find_critical_path
from profkit.index.replay.graph import NodeKind
from profkit.model.change import ProgramChange
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder
from tests.corpus.recordings import CORPUS
from tests.traces import load_trace, read_context

TRACES = Path(__file__).parents[3] / "traces"
RECORDINGS = sorted(
    [*TRACES.rglob("*.json.gz"), *(CORPUS / "traces").glob("*.json.gz")], key=os.path.getsize
)
each_recording = pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
_contexts: dict[Path, Context] = {}


def load_context(path: Path) -> Context:
    if path not in _contexts:
        _contexts[path] = Context(trace=load_trace(path))
    return _contexts[path]


@each_recording
def test_an_unchanged_replay_has_every_recorded_time(path: Path) -> None:
    graph = load_context(path).replay.graph
    for hidden in (False, True):
        recorded = (graph.kind != NodeKind.JOIN) & ~(hidden & graph.may_be_lag)
        times = graph.replay(graph.weights(hidden=hidden))
        np.testing.assert_array_equal(times[recorded], graph.time_ns[recorded])


@each_recording
def test_the_critical_path_tiles_every_step(path: Path) -> None:
    ctx = load_context(path)
    critical, starts, ends = ctx.critical_path, *ctx.replay.windows
    for step, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        in_step = critical.step == step
        assert critical.lengths_ns[in_step].sum() == end - start
        if in_step.any():
            bounds = np.append(critical.starts_ns[in_step], end)
            assert bounds[0] == start
            np.testing.assert_array_equal(bounds[1:], critical.ends_ns[in_step])


def test_a_path_of_many_blocks_equals_the_path_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = load_context(next(TRACES.glob("starved_loader/*.pt.trace.json.gz")))
    whole = find_critical_path(ctx.replay, ctx.path_activity)
    monkeypatch.setattr("profkit.index.replay.path_activity._BLOCK", 7)
    parts = find_critical_path(ctx.replay, ctx.path_activity)
    assert len(whole.row) > 100
    for name in ("starts_ns", "ends_ns", "kind", "row", "lane", "step"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


@each_recording
def test_scaling_every_duration_and_lag_scales_every_time(path: Path) -> None:
    graph = load_context(path).replay.graph
    weights = graph.weights(hidden=False)
    for column in (weights.dur_ns, weights.first_ns, weights.second_ns):
        column[column > np.iinfo(np.int64).min // 4] *= 3
    recorded = graph.kind != NodeKind.JOIN
    np.testing.assert_array_equal(graph.replay(weights)[recorded], 3 * graph.time_ns[recorded])


@each_recording
def test_removing_more_never_takes_longer(path: Path) -> None:
    ctx = load_context(path)
    replay = ctx.replay
    work, calls = ctx.launches.work, ctx.syncs.rows
    changes = [
        ProgramChange(),
        ProgramChange(calls=calls[::2]),
        ProgramChange(calls=calls),
        ProgramChange(calls=calls, scaled=((work[::3], 0.5),)),
        ProgramChange(calls=calls, scaled=((work, 0.0),)),
        ProgramChange(calls=calls, scaled=((work, 0.0), (ctx.tree.rows.astype(np.intp), 0.0))),
    ]

    for hidden in (False, True):
        lengths = [replay.length_ns(replay.replay(change, hidden=hidden)) for change in changes]
        assert lengths[0] == replay.recorded_ns
        assert lengths == sorted(lengths, reverse=True)


@each_recording
def test_many_changes_in_one_pass_save_what_each_saves_alone(path: Path) -> None:
    ctx = load_context(path)
    work, calls = ctx.launches.work, ctx.syncs.rows
    host = ctx.tree.rows.astype(np.intp)
    changes = [
        ProgramChange(),
        *(ProgramChange(calls=calls[i::7]) for i in range(7)),
        ProgramChange(calls=calls[::2], scaled=((host[::5], 0.0), (work[::3], 0.5))),
        ProgramChange(scaled=((work[::2], 0.0), (host[::9], 2.0), (ctx.data_waits, 0.0))),
        ProgramChange(host_time=((0, int(ctx.events.end_ns.max(initial=0)) // 2),)),
        ProgramChange(captured=work[::2]),
    ]
    assert ctx.replay.savings(changes) == [ctx.replay.saving(change) for change in changes]


def test_where_the_host_runs_ahead_the_steps_are_the_devices(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(5):
        with b.step():
            for _ in range(4):
                b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=50_000)
    ctx = read_context(b, tmp_path)

    starts, ends = ctx.replay.windows
    assert ctx.replay.is_device_bound
    np.testing.assert_array_equal(ends[1:] - starts[1:], 200_000)
    np.testing.assert_array_equal(starts[1:], ends[:-1])

    breakdown = summarize(ctx).breakdown
    assert breakdown is not None
    assert breakdown.host_per_step_ns == pytest.approx(80_000, rel=0.05)
    assert breakdown.per_step_ns == pytest.approx(200_000, rel=0.05)

    steps = summarize(ctx).steps
    assert [step.time_ns for step in steps] == (ends - starts).tolist()
    for step in steps:
        assert sum(part.ns for part in step.parts) == step.time_ns
        assert step.dur_ns == pytest.approx(80_000, rel=0.05)

    report = analyze(tmp_path / "t.json")
    assert headline(report).startswith("The GPU is busy 98% of each 204 µs step (")
    assert "80.0 µs on the host, which runs ahead" in headline(report)


def test_work_from_before_the_first_step_is_not_of_it(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(40):
        b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=50_000)
    for _ in range(4):
        with b.step():
            for _ in range(4):
                b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=50_000)
    ctx = read_context(b, tmp_path)

    starts, ends = ctx.replay.windows
    np.testing.assert_array_equal(ends - starts, 200_000)

    # Nor is it with changes, which shorten it too.
    change = ProgramChange(scaled=((ctx.launches.work, 0.8),))
    starts, ends = ctx.replay.windows_at(ctx.replay.replay(change))
    np.testing.assert_array_equal(ends - starts, 160_000)
    assert ctx.replay.savings([change] * 5) == [ctx.replay.saving(change)] * 5


def test_a_device_that_only_finishes_the_last_step_later_is_not_the_bottleneck(
    tmp_path: Path,
) -> None:
    b = TraceBuilder()
    for number in range(4):
        with b.step():
            for _ in range(4):
                b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=50_000)
            if number < 3:
                b.synchronize()
    assert not read_context(b, tmp_path).replay.is_device_bound
