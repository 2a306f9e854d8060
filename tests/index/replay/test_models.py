"""The replay agrees with programs that were changed, and with a second model."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.index.device.syncs import find_calls_by_profiler
from profkit.index.replay.critical_path import find_critical_path
from profkit.index.replay.graph import NodeKind
from profkit.model.change import ProgramChange
from profkit.model.events import Int64s, Rows
from tests.corpus.test_corpus import WITHOUT_CATEGORIES
from tests.index.replay.programs import Action, Played, actions, loading, one_stream, record_program
from tests.index.replay.simulation import Key, Simulation
from tests.index.replay.test_replay import RECORDINGS, load_context
from tests.traces import read_context

TOLERANCE = 0.001
"""Share of a recording's length by which the two models may differ: they spread lags of unknown
cause differently where another predecessor becomes the latest."""
UNREADABLE = (
    "cpu-vae-module-level-frame",
    "bracketed-copies",
    *WITHOUT_CATEGORIES,
    "rocm-gemm-no-correlation",
    "mtia-inference",
)
"""Traces with backslashes that the standard library's decoder refuses, of another producer, without
categories, and without correlation: the second model knows Kineto's fields only."""
programs = st.one_of(actions, one_stream)
choices = st.sets(st.integers(0, 40))
factors = st.sampled_from((1.0, 0.5, 0.25, 0.001))
many = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


def recorded(played: Played, folder: Path) -> Context:
    return read_context(played.builder, folder)


def calls_of(ctx: Context, played: Played, without: set[int]) -> Rows:
    starts = [at for number, at in played.waits.items() if number in without]
    calls = ctx.syncs.rows[np.isin(ctx.events.ts_ns[ctx.syncs.rows], starts)]
    assert len(calls) == len(starts)
    return calls


def ends(ctx: Context, times: Int64s) -> tuple[int, list[int]]:
    """Return the end of all threads, and those of device work, ascending."""
    kind = ctx.replay.graph.kind
    last = int(times[kind == NodeKind.HOST].max())
    return last, sorted(times[kind == NodeKind.DEVICE].tolist())


def keys(ctx: Context, rows: Rows) -> set[Key]:
    return {(ctx.events.name_of(row), int(ctx.events.ts_ns[row])) for row in rows.tolist()}


def simulated(
    simulation: Simulation, removed: set[Key], shorter: set[Key], factor: float
) -> tuple[int, list[int]]:
    simulated = simulation.run(removed=removed, shorter=shorter, factor=factor)
    of_threads = [at for (_, start), at in simulated if start < 0]
    of_work = [at for (name, start), at in simulated if start >= 0 and name]
    return max(of_threads, default=0), sorted(of_work)


@many
@given(program=programs, without=choices, factor=factors)
def test_a_replay_is_what_the_changed_program_takes(
    folder: Path, program: list[Action], without: set[int], factor: float
) -> None:
    played = record_program(program)
    ctx = recorded(played, folder)
    calls = calls_of(ctx, played, without)
    change = ProgramChange(calls=calls, scaled=((ctx.launches.work, factor),))
    changed = record_program(program, without=sorted(without), factor=factor)
    end_ns, ends_ns = ends(ctx, ctx.replay.replay(change))
    assert end_ns == changed.end_ns
    assert ends_ns == sorted(changed.ends_ns)


@many
@given(program=st.one_of(programs, loading), without=choices, factor=factors, loads=st.booleans())
def test_a_second_model_predicts_the_same_of_random_programs(
    folder: Path, program: list[Action], without: set[int], factor: float, *, loads: bool
) -> None:
    played = record_program(program)
    ctx = recorded(played, folder)
    calls, work = calls_of(ctx, played, without), ctx.launches.work
    loaded = ctx.data_waits if loads else ctx.data_waits[:0]
    change = ProgramChange(calls=calls, scaled=((work, factor), (loaded, 0.0)))
    simulation = Simulation(played.builder.to_bytes())
    removed = keys(ctx, calls) | keys(ctx, loaded)
    expected = simulated(simulation, removed, keys(ctx, work), factor)
    assert ends(ctx, ctx.replay.replay(change)) == expected


@pytest.mark.parametrize(
    "path",
    [
        path if path.stat().st_size < 600_000 else pytest.param(path, marks=pytest.mark.slow)
        for path in RECORDINGS
        if not path.name.startswith(UNREADABLE)
    ],
    ids=lambda path: path.name,
)
def test_a_second_model_predicts_the_same_of_recorded_traces(path: Path) -> None:
    ctx = load_context(path)
    calls, work, loads = ctx.syncs.rows, ctx.launches.work, ctx.data_waits
    ignored = find_calls_by_profiler(ctx.events, ctx.tree, ctx.launches, calls)
    simulation = Simulation(path, keys(ctx, calls[ignored]))
    assert {wait.span.key for wait in simulation.waits} == keys(ctx, calls)

    graph = ctx.replay.graph
    unrecorded = [work.span.dur for work in simulation.works if not work.span.name]
    # The second model takes work that starts late outside of calls for a latency of its launch:
    # in `graph-kernels-missing` that is a third of the recording.
    hidden_ns = int(graph.dur_ns[graph.kind == NodeKind.UNRECORDED].sum())
    late_ns = int(graph.dur_ns[graph.may_be_lag].sum())
    allowed_ns = TOLERANCE * int(graph.time_ns.max(initial=0))
    assert hidden_ns - late_ns - allowed_ns <= sum(unrecorded) <= hidden_ns + allowed_ns

    allowed_ns += late_ns
    for removed, shorter in (
        (calls[:0], work[:0]),
        (calls, work[:0]),
        (calls[::2], work[:0]),
        (loads, work[:0]),
        (calls[:0], work),
        (calls, work[::2]),
    ):
        gone = ((loads, 0.0),) if removed is loads else ()
        kept = calls[:0] if removed is loads else removed
        change = ProgramChange(calls=kept, scaled=((shorter, 0.5), *gone))
        ends_ns = ends(ctx, ctx.replay.replay(change))
        expected = simulated(simulation, keys(ctx, removed), keys(ctx, shorter), 0.5)
        assert ends_ns[0] == pytest.approx(expected[0], abs=allowed_ns)
        np.testing.assert_allclose(ends_ns[1], expected[1], rtol=0, atol=allowed_ns)


@many
@given(program=st.one_of(programs, loading))
def test_random_recordings_replay_exactly_and_their_paths_tile_them(
    folder: Path, program: list[Action]
) -> None:
    ctx = recorded(record_program(program), folder)
    graph = ctx.replay.graph
    is_moment = graph.kind != NodeKind.JOIN
    for hidden in (False, True):
        weights = graph.weights(hidden=hidden)
        times = graph.replay(weights)
        np.testing.assert_array_equal(times[is_moment], graph.time_ns[is_moment])
        for column in (weights.dur_ns, weights.first_ns, weights.second_ns):
            column[column > np.iinfo(np.int64).min // 4] *= 3
        scaled = graph.replay(weights)
        np.testing.assert_array_equal(scaled[is_moment], 3 * graph.time_ns[is_moment])

    path, (starts, completed) = ctx.critical_path, ctx.replay.windows
    assert path.lengths_ns.sum() == (completed - starts).sum()
    np.testing.assert_array_equal(path.starts_ns[1:], path.ends_ns[:-1])

    unchanged = find_critical_path(ctx.replay, ctx.path_activity, ProgramChange())
    for name in ("starts_ns", "ends_ns", "kind", "row", "lane", "step"):
        np.testing.assert_array_equal(getattr(unchanged, name), getattr(path, name))
    assert unchanged.unexplained_ns == path.unexplained_ns


@many
@given(program=st.one_of(programs, loading), first=choices, more=choices)
def test_removing_more_of_random_recordings_never_takes_longer(
    folder: Path, program: list[Action], first: set[int], more: set[int]
) -> None:
    played = record_program(program)
    ctx = recorded(played, folder)
    work, replay = ctx.launches.work, ctx.replay
    some_calls, all_ = calls_of(ctx, played, first), calls_of(ctx, played, first | more)
    host = ctx.tree.rows.astype(np.intp)
    changes = [
        ProgramChange(),
        ProgramChange(calls=some_calls),
        ProgramChange(calls=all_),
        ProgramChange(calls=all_, scaled=((work[::2], 0.5),)),
        ProgramChange(calls=all_, scaled=((work, 0.0),)),
        ProgramChange(calls=all_, scaled=((work, 0.0), (host, 0.0))),
    ]

    for hidden in (False, True):
        lengths = [replay.length_ns(replay.replay(change, hidden=hidden)) for change in changes]
        assert lengths == sorted(lengths, reverse=True)


@many
@given(program=st.one_of(programs, loading), chosen=st.lists(choices, min_size=4, max_size=9))
def test_many_changes_of_random_recordings_in_one_pass_save_what_each_saves_alone(
    folder: Path, program: list[Action], chosen: list[set[int]]
) -> None:
    played = record_program(program)
    ctx = recorded(played, folder)
    work, host = ctx.launches.work, ctx.tree.rows.astype(np.intp)
    changes = [
        ProgramChange(
            calls=calls_of(ctx, played, rows),
            scaled=((work[i::3], 0.5), (host[i::5], i / 4), (ctx.data_waits[i:], 0.0)),
        )
        for i, rows in enumerate(chosen)
    ]
    assert ctx.replay.savings(changes) == [ctx.replay.saving(change) for change in changes]


@many
@given(program=programs)
def test_without_its_host_a_recording_takes_at_least_the_longest_stream(
    folder: Path, program: list[Action]
) -> None:
    ctx = recorded(record_program(program), folder)
    events, work = ctx.events, ctx.launches.work
    stream = events.stream.at(work)
    busy_ns = max(int(events.dur_ns[work[stream == number]].sum()) for number in np.unique(stream))
    change = ProgramChange(calls=ctx.syncs.rows, host_time=((0, int(events.end_ns.max())),))
    assert ctx.replay.length_ns(ctx.replay.replay(change)) >= busy_ns
