"""profkit's own calls, marks and threads are taken out of a recording where it is read."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.host.nesting import CallTree, build_call_tree
from profkit.model.capture_info import CaptureInfo
from profkit.model.events import NO_ROW, Category, EventTable
from profkit.model.own_code import is_own_call, is_program_call
from profkit.readers.kineto.main_thread import script_name
from profkit.testing import TraceBuilder
from profkit.testing.event_recorder import MAIN_THREAD, Event
from tests.traces import load_trace

START = ("profkit/capture/recording/profiler.py", 219, "start")
WRAPPER = ("profkit/capture/process/wrappers.py", 164, "wrapper")
IN_NEW_THREAD = ("profkit/capture/process/new_thread.py", 14, "in_new_thread")
BOOTSTRAP = ("threading.py", 9, "_bootstrap")
SAMPLER = 41
LAUNCHER = (
    ("<frozen runpy>", 198, "_run_module_as_main"),
    ("profkit/__main__.py", 8, "<module>"),
    ("click/core.py", 2054, "invoke"),
    ("profkit/cli/run.py", 121, "command"),
    ("profkit/capture/process/program.py", 136, "_execute"),
)


def read(builder: TraceBuilder, tmp_path: Path) -> EventTable:
    return load_trace(builder.write(tmp_path / "t.pt.trace.json")).events


def named(events: EventTable, *categories: Category) -> list[str]:
    return [events.name_of(row) for row in events.rows_of(*categories).tolist()]


def parents(events: EventTable) -> dict[str, str | None]:
    """Return the caller of each event in the call trees, by name."""
    tree: CallTree = build_call_tree(events)
    above = tree.parent
    return {
        events.name_of(row): None if above[row] == NO_ROW else events.name_of(int(above[row]))
        for row in tree.rows.tolist()
    }


@contextmanager
def frames(builder: TraceBuilder, *calls: tuple[str, int, str]) -> Iterator[None]:
    with ExitStack() as stack:
        for call in calls:
            stack.enter_context(builder.frame(*call))
        yield


def test_work_of_profkit_is_one_event_without_its_calls(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("train.py", 3, "train"):
        with builder.frame(*START), builder.frame("torch/cuda/__init__.py", 7, "synchronize"):
            builder.synchronize()
        builder.compute("aten::mm", 10_000)
    events = read(builder, tmp_path)
    assert named(events, Category.PROFKIT) == [f"{START[0]}({START[1]}): {START[2]}"]
    assert len(named(events, Category.CONCEALED)) == 2
    assert not len(events.rows_of(Category.RUNTIME))


def test_what_a_wrapper_calls_is_its_callers(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("train.py", 3, "train"), builder.frame(*WRAPPER):
        builder.compute("aten::mm", 10_000)
    assert parents(read(builder, tmp_path)) == {
        "train.py(3): train": None,
        "aten::mm": "train.py(3): train",
    }


def test_what_started_the_program_is_concealed_down_to_its_first_frame(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with frames(builder, *LAUNCHER):
        with builder.builtin("function exec"):
            builder.advance(10)
            with frames(builder, ("train.py", 1, "<module>"), ("click/core.py", 2054, "invoke")):
                builder.compute("aten::mm", 10_000)
        with builder.builtin("function print"):
            builder.advance(1_000)

    events = read(builder, tmp_path)
    # The program may use click itself.
    assert parents(events) == {
        "train.py(1): <module>": None,
        "click/core.py(2054): invoke": "train.py(1): <module>",
        "aten::mm": "click/core.py(2054): invoke",
    }


def test_a_program_that_runpy_started_without_profkit_keeps_its_frames(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame(*LAUNCHER[0]), builder.frame("train.py", 1, "<module>"):
        with builder.frame(*START):
            builder.advance(1_000)
        builder.compute("aten::mm", 10_000)
    assert parents(read(builder, tmp_path))["train.py(1): <module>"] == (
        "<frozen runpy>(198): _run_module_as_main"
    )


@pytest.mark.parametrize("name", ["", "thread 41 (python)", "profkit-sampler"])
def test_threads_of_profkit_have_no_events(tmp_path: Path, name: str) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("train.py", 3, "train"):
        builder.compute("aten::mm", 10_000)
    sampler = ("profkit/capture/process/stack_sampler.py", 219, "_run")
    sleep = builder.builtin("function sleep")
    with builder.thread(SAMPLER), frames(builder, BOOTSTRAP, sampler), sleep:
        builder.advance(90_000)
    if name:
        named_thread = {"name": name}
        builder.events.append(
            Event("M", "thread_name", None, MAIN_THREAD, SAMPLER, 0, None, named_thread)
        )
    assert set(parents(read(builder, tmp_path))) == {"train.py(3): train", "aten::mm"}


def test_a_thread_of_the_program_that_profkit_looks_into_stays(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.thread(SAMPLER), frames(builder, BOOTSTRAP, WRAPPER, ("loader.py", 4, "fetch")):
        builder.advance(90_000)
    assert parents(read(builder, tmp_path)) == {
        "threading.py(9): _bootstrap": None,
        "loader.py(4): fetch": "threading.py(9): _bootstrap",
    }


def test_a_new_thread_that_profkit_waits_for_has_no_events(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("train.py", 3, "train"):
        builder.compute("aten::mm", 10_000)
        with builder.frame(*IN_NEW_THREAD):
            builder.advance(1_000)
            with builder.thread(SAMPLER):
                builder.compute("aten::ones", 5_000)
            builder.advance(1_000)
    assert "aten::ones" not in parents(read(builder, tmp_path))


def test_a_thread_of_backward_that_outlasts_the_wait_stays(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("train.py", 3, "train"):
        with builder.frame(*IN_NEW_THREAD), builder.thread(SAMPLER):
            builder.compute("aten::ones", 5_000)
        with builder.thread(SAMPLER):
            builder.compute("MmBackward0", 5_000)
    assert {"aten::ones", "MmBackward0"} <= set(parents(read(builder, tmp_path)))


def test_a_mark_takes_out_all_within_it_without_stacks(tmp_path: Path) -> None:
    builder = TraceBuilder()
    with builder.step():
        builder.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=5_000)
        with builder.annotation("profkit: memory"):
            builder.compute("aten::sum", 30_000)
            builder.synchronize()
    events = read(builder, tmp_path)
    assert named(events, Category.PROFKIT) == ["profkit: memory"]
    assert named(events, Category.CONCEALED) == ["aten::sum", "cudaDeviceSynchronize"]
    assert named(events, Category.OP) == ["aten::mm"]


def test_an_annotation_that_profkit_opens_outlives_the_call_that_opens_it(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    region = builder.annotation("serve")
    with builder.frame("serve.py", 3, "serve"):
        with builder.frame("profkit/capture/recording/session.py", 9, "_open_annotation"):
            builder.advance(2_000)
            with builder.builtin("method _record_function_enter"):
                builder.advance(500)
                region.__enter__()
                builder.advance(1_000)
        builder.compute("aten::mm", 10_000)
        with builder.frame("profkit/capture/recording/session.py", 19, "_close_annotation"):
            builder.advance(700)
            region.__exit__(None, None, None)
            builder.advance(300)
    events = read(builder, tmp_path)
    tree, rows = build_call_tree(events), events.rows_of(Category.PROFKIT)

    inside = [row for row in rows.tolist() if events.name_of(int(tree.parent[row])) == "serve"]
    # Of the calls around its begin and its end the part within the region is kept.
    assert events.dur_ns[inside].tolist() == [1_000, 700]
    assert parents(events)["aten::mm"] == "serve"


def test_positions_and_times_of_the_programs_events_stay(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with frames(builder, *LAUNCHER, ("train.py", 1, "<module>")):
        builder.compute("aten::mm", 10_000)
        with builder.frame(*START):
            builder.advance(4_000)
        builder.compute("aten::add", 10_000)
    events = read(builder, tmp_path)
    rows = events.rows_of(Category.OP)
    assert events.position[rows].tolist() == [6, 8]
    assert events.ts_ns[rows].tolist() == [0, 14_000]
    assert len(events) == len(builder.events)


def test_the_users_own_file_named_like_profkits_is_the_users(tmp_path: Path) -> None:
    file = "profkit/capture/train.py"
    builder = TraceBuilder(stacks=True)
    builder.capture = CaptureInfo(version="1", name="t", paths={file: f"/home/me/{file}"})
    with builder.frame(file, 3, "train"):
        builder.compute("aten::mm", 10_000)
    assert parents(read(builder, tmp_path))["aten::mm"] == f"{file}(3): train"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/home/me/train.py", "--lr", "1"], "train.py"), (["C:\\me\\train.py"], "train.py"),
        (["-c"], ""), ([], ""), (["/usr/lib/ipykernel_launcher.py"], ""),
    ],
)  # fmt: skip
def test_the_program_has_the_name_of_its_script(argv: list[str], name: str) -> None:
    assert script_name(argv) == name


def test_the_main_thread_has_the_scripts_name_and_others_keep_theirs(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.capture = CaptureInfo(version="1", name="t", argv=["a/train.py"], pid=MAIN_THREAD)
    builder.compute("aten::mm", 10_000)
    with builder.thread(SAMPLER):
        builder.compute("aten::mul", 10_000)
    lanes = {lane.tid: lane.thread for lane in read(builder, tmp_path).lanes}
    assert lanes == {str(MAIN_THREAD): "train.py", str(SAMPLER): ""}


@pytest.mark.parametrize(
    ("name", "is_own", "is_program"),
    [
        ("profkit/capture/run/run.py(60): run", True, False),
        ("/usr/lib/python3.11/site-packages/profkit/api.py(1): f", True, False),
        ("/opt/work/profkit/capture/run/run.py(60): run", True, False),
        ("/home/me/.venv/bin/profkit(8): <module>", True, False),
        ("/home/me/profkit/model/net.py(8): forward", False, True),
        ("train.py(8): main", False, True),
        ("<string>(1): <module>", False, True), ("<string>(2): __init__", False, False),
        ("<frozen runpy>(88): _run_code", False, False),
        ("<eval_with_key>.0(4): forward", False, True),
        ("<ipython-input-1>(4): f", False, True),
        ("torch/nn/modules/linear.py(114): forward", False, False),
        ("torch/utils/data/dataloader.py(600): __next__", False, True),
        ("threading.py(1): run", False, False), ("click/core.py(1): invoke", False, False),
        ("datasets/arrow.py(1): read", False, True),
        ("nn.Module: Linear_0", False, True), ("<built-in method item of Tensor>", False, False),
    ],
)  # fmt: skip
def test_a_call_is_known_by_its_name(name: str, *, is_own: bool, is_program: bool) -> None:
    assert is_own_call(name) == is_own
    assert is_program_call(name) == is_program


TREE = (Category.OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME, Category.PROFKIT)
CALLS = st.sampled_from(
    [START, WRAPPER, *LAUNCHER, ("train.py", 3, "train"), ("json/decoder.py", 1, "decode")]
)
PROGRAMS = st.recursive(
    st.sampled_from(["op", "mark", "pause"]),
    lambda inner: st.tuples(CALLS, st.lists(inner, max_size=4)),
    max_leaves=20,
)


def add_part(builder: TraceBuilder, part: object) -> None:
    if part == "op":
        builder.compute("aten::mm", 1_000)
    elif part == "mark":
        with builder.annotation("profkit: stop"):
            builder.compute("aten::sum", 500)
    elif part == "pause":
        builder.advance(300)
    else:
        assert isinstance(part, tuple)
        call, inner = part
        with builder.frame(*call):
            builder.advance(10)
            for inner_call in inner:
                add_part(builder, inner_call)
            builder.advance(10)


@given(st.lists(PROGRAMS, min_size=1, max_size=4))
def test_no_operator_of_any_program_is_lost_and_no_call_of_profkit_stays(
    tmp_path_factory: pytest.TempPathFactory, parts: list[object]
) -> None:
    builder = TraceBuilder(stacks=True)
    builder.compute("aten::mm", 1_000)
    for part in parts:
        add_part(builder, part)
    events = read(builder, tmp_path_factory.mktemp("random"))
    n_ops = sum(event.name == "aten::mm" for event in builder.events)
    assert named(events, Category.OP) == ["aten::mm"] * n_ops
    shown = named(events, Category.PYTHON, Category.ANNOTATION)
    assert not [name for name in shown if "profkit" in name]
    # What profkit did is a leaf: nothing of the program is below it.
    tree = build_call_tree(events)
    above = tree.parent[events.rows_of(Category.OP, Category.PYTHON)]
    assert not (events.category[above[above != NO_ROW]] == Category.PROFKIT).any()
    assert np.array_equal(np.sort(tree.rows), events.rows_of(*TREE))
