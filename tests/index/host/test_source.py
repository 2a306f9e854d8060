"""The user's own line of every event, from stacks, from recorded and from lent lines."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from profkit.engine.context import Context
from profkit.index.host import step_alignment
from profkit.index.host.frames import Ownership, parse_frame
from profkit.model.capture_info import CaptureInfo, OpLines
from profkit.model.events import Category
from profkit.model.location import Location
from profkit.testing import TraceBuilder
from profkit.testing.event_recorder import Event

Read = Callable[[TraceBuilder], Context]


def where(ctx: Context, op: str, nth: int = 0) -> Location:
    rows = [r for r in ctx.events.rows_of(Category.OP) if ctx.events.name_of(r) == op]
    return ctx.location(int(rows[nth]))


def test_a_frame_is_read_from_its_name() -> None:
    frame = parse_frame("src/a(1)/train.py(12): train_step")
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("src/a(1)/train.py", 12, "train_step")
    assert frame.precision == "function"
    assert parse_frame("<built-in method item of Tensor object>") is None
    assert parse_frame("nn.Module: Linear_0") is None


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("train.py", True),
        ("model/net.py", True),
        (r"D:\work\train.py", True),
        ("/home/u/project/train.py", True),
        ("torch/nn/modules/linear.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/home/u/venv/lib/python3.11/site-packages/transformers/x.py", False),
        (r"C:\Users\u\venv\Lib\site-packages\x\y.py", False),
        ("threading.py", False),
        ("<string>", False),
        ("<ipython-input-3-0a1b2c>", True),
        ("<frozen importlib._bootstrap>", False),
        ("/var/torchinductor_u/ab/cabc.py", False),
    ],
)
def test_user_code_is_recognized_by_path(file: str, user: bool) -> None:  # noqa: FBT001
    assert Ownership(paths={}, libraries=(), is_known=False).is_user(file) == user


def test_a_recorded_path_is_user_code() -> None:
    ownership = Ownership({"queue.py": "/home/u/queue.py"}, ("mylib",), is_known=True)
    assert ownership.is_user("queue.py")
    assert ownership.path("queue.py") == "/home/u/queue.py"
    assert not ownership.is_user("mylib/x.py")


def test_the_line_is_in_the_innermost_frame_of_the_user(read: Read) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("train.py", 30, "<module>"), builder.frame("net.py", 7, "forward"):
        with builder.frame("torch/nn/functional.py", 100, "linear"), builder.module("Linear", 2):
            builder.compute("aten::linear", 1_000)
        builder.compute("aten::relu", 1_000)
    ctx = read(builder)
    assert where(ctx, "aten::linear") == Location(
        "net.py", 7, "forward", "aten::linear", "Linear_2", precision="function"
    )
    assert where(ctx, "aten::relu").module is None
    assert ctx.source.origin == "window"


def test_a_backward_operator_has_the_line_of_the_forward_one_that_made_it(read: Read) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.frame("net.py", 7, "forward"), builder.op("aten::mm", sequence=5):
        builder.advance(100)
    with builder.frame("net.py", 9, "loss"), builder.op("aten::sum", sequence=6):
        builder.advance(100)
    with (
        builder.thread(2),
        builder.op("autograd::engine::evaluate_function: MmBackward0", sequence=5) as b,
    ):
        assert b.args is not None
        b.args["Fwd thread id"] = 1
        builder.launch("aten::mm_grad", kernel="k", host_ns=5_000, device_ns=10)
    ctx = read(builder)
    assert where(ctx, "aten::mm_grad").line == 7


def test_old_call_stacks_have_exact_lines(read: Read) -> None:
    builder = TraceBuilder()
    with builder.op("aten::mm", self_ns=100) as op:
        assert op.args is not None
        op.args["Call stack"] = "/x/site-packages/torch/nn/f.py(3): linear;train.py(44): <module>"
    assert where(read(builder), "aten::mm") == Location("train.py", 44, "<module>", "aten::mm")


def test_without_stacks_there_is_no_line(read: Read) -> None:
    builder = TraceBuilder()
    builder.compute("aten::mm", 100)
    ctx = read(builder)
    assert not ctx.has_lines
    assert where(ctx, "aten::mm") == Location(op="aten::mm")


def op_lines(entries: list[tuple[str, int, int]], *, same_window: bool = False) -> OpLines:
    """``entries`` are (name, parent, line)."""
    names = list(dict.fromkeys(name for name, _, _ in entries))
    lines = sorted({line for _, _, line in entries if line})
    return OpLines(
        same_window=same_window,
        names=names,
        frames=[("/w/train.py", line, "step", 1) for line in lines],
        modules=[],
        name=[names.index(name) for name, _, _ in entries],
        parent=[parent for _, parent, _ in entries],
        thread=[1] * len(entries),
        external_id=[-1] * len(entries),
        frame=[lines.index(line) if line else -1 for _, _, line in entries],
        module=[-1] * len(entries),
    )


def lent(read: Read, lines: OpLines, steps: list[list[tuple[str, str]]]) -> list[list[int | None]]:
    """Lines of operators in steps of (outer, inner) pairs; those of the inner ones."""
    builder = TraceBuilder(capture=CaptureInfo(version="1", name="train", lines=lines))
    for step in steps:
        with builder.step():
            for outer, inner in step:
                with builder.op(outer):
                    builder.compute(inner, 100)
    ctx = read(builder)
    rows = [r for r in ctx.events.rows_of(Category.OP) if ctx.tree.depth[r] == 2]
    number = ctx.steps.of(ctx.events.ts_ns[np.array(rows)])
    return [
        [ctx.location(int(r)).line for r, n in zip(rows, number, strict=True) if n == step]
        for step in range(len(steps))
    ]


STEP = [
    ("aten::linear", "aten::addmm"),
    ("aten::relu", "aten::clamp"),
    ("aten::linear", "aten::addmm"),
]
LENT = [
    ("aten::linear", -1, 5),
    ("aten::addmm", 0, 5),
    ("aten::relu", -1, 6),
    ("aten::clamp", 2, 6),
    ("aten::linear", -1, 8),
    ("aten::addmm", 4, 8),
]


def test_lines_of_another_step_are_aligned_by_path_and_count(read: Read) -> None:
    assert lent(read, op_lines(LENT), [STEP, STEP]) == [[5, 6, 8], [5, 6, 8]]


def test_alignment_does_not_depend_on_the_chunk_size(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = [("aten::linear", "aten::addmm")]
    steps = [STEP, fewer, STEP, STEP]
    whole = lent(read, op_lines(LENT), steps)
    assert whole == [[5, 6, 8], [None], [5, 6, 8], [5, 6, 8]]
    for piece in (1, 5, 13):
        monkeypatch.setattr(step_alignment, "_CHUNK", piece)
        assert lent(read, op_lines(LENT), steps) == whole


def test_a_recompiled_function_has_the_same_lines(
    read: Read,
) -> None:
    # A function that is compiled anew in each step has a number of its own in each.
    lines = op_lines([("Torch-Compiled Region: 0/4", -1, 5), ("aten::addmm", 0, 5)])
    steps = [[(f"Torch-Compiled Region: 0/{version}", "aten::addmm")] for version in (5, 6)]
    assert lent(read, lines, steps) == [[5], [5]]


def test_operators_within_an_unaligned_operator_have_no_line(read: Read) -> None:
    strange = [("aten::strange", "aten::addmm"), *STEP]
    assert lent(read, op_lines(LENT), [strange]) == [[None, 5, 6, 8]]


def test_a_different_step_gets_no_ambiguous_lines(read: Read) -> None:
    fewer = [("aten::linear", "aten::addmm")]
    more = [*STEP, ("aten::gelu", "aten::erf"), ("aten::relu", "aten::clamp")]
    # One linear instead of two: it may be either. Relu comes from one line, so twice is no doubt.
    assert lent(read, op_lines(LENT), [fewer, more]) == [[None], [5, 6, 8, None, 6]]


def test_what_runs_before_and_after_identifies_operators_of_longer_steps(read: Read) -> None:
    # Episodes: the lines were recorded in one of two actions, other steps have one or three.
    # Sampling follows the first linear, and a clamp the second; lines are counted from 1.
    action = [(5, "aten::linear"), (6, "aten::multinomial"), (7, "aten::linear"), (8, "aten::relu")]
    entries = [(name, -1, line) for line, name in action * 2]
    nested = [
        entry
        for i, (name, _, line) in enumerate(entries)
        for entry in ((name, -1, line), (f"{name}_inner", 2 * i, line))
    ]
    pairs = [(name, f"{name}_inner") for _, name in action]
    assert lent(read, op_lines(nested), [pairs, pairs * 3]) == [[5, 6, 7, 8], [5, 6, 7, 8] * 3]


def test_operators_of_equal_name_in_different_parents_differ(read: Read) -> None:
    lines = op_lines(
        [
            ("aten::linear", -1, 5),
            ("aten::addmm", 0, 5),
            ("aten::mlp", -1, 9),
            ("aten::addmm", 2, 9),
        ]
    )
    steps = [[("aten::mlp", "aten::addmm"), ("aten::linear", "aten::addmm")]]
    assert lent(read, lines, steps) == [[9, 5]]


def test_lines_of_the_same_window_are_joined_by_id(read: Read) -> None:
    lines = op_lines([("aten::mm", -1, 3), ("aten::mm", -1, 4)], same_window=True)
    builder = TraceBuilder(stacks=True)
    for _ in range(2):
        builder.compute("aten::mm", 100)
    lines.external_id[:] = [2, 1]
    builder.capture = CaptureInfo(version="1", name="train", lines=lines)
    ctx = read(builder)
    assert [where(ctx, "aten::mm", nth).line for nth in (0, 1)] == [4, 3]
    assert ctx.source.origin == "window"


def test_a_calls_own_correlation_is_not_used_as_an_operator_id(read: Read) -> None:
    lines = op_lines([("aten::mm", -1, 3), ("aten::mm", -1, 4)], same_window=True)
    lines.external_id[:] = [1, 2]
    builder = TraceBuilder(stacks=True)
    for _ in range(2):
        builder.compute("aten::mm", 100)
    for ident in (1, 2):
        args = {"correlation": ident, "External id": ident}
        at_ns = builder.now_ns + ident * 100
        builder.events.append(Event("X", "urQueueFinish", "xpu_runtime", 1, 1, at_ns, 50, args))
    builder.capture = CaptureInfo(version="1", name="train", lines=lines)
    ctx = read(builder)
    assert [where(ctx, "aten::mm", nth).line for nth in (0, 1)] == [3, 4]
    calls = ctx.events.rows_of(Category.RUNTIME).tolist()
    assert [ctx.location(row).line for row in calls] == [None, None]


def test_the_origin_of_aligned_lines_is_recorded(read: Read) -> None:
    builder = TraceBuilder(capture=CaptureInfo(version="1", name="t", lines=op_lines(LENT)))
    with builder.step():
        builder.compute("aten::relu", 100)
    assert read(builder).source.origin == "other-step"


def started(b: TraceBuilder) -> None:
    """Add the profiler's calls at the start of a recording, the first of them still open."""
    with b.frame("torch/autograd/profiler.py", 339, "_start_trace"):
        b.advance(1_000)
    with b.frame("torch/profiler/profiler.py", 304, "add_metadata_json"):
        b.advance(1_000)


def test_a_frame_that_was_open_when_recording_began_has_no_line(read: Read) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 141, "<module>"), b.frame("train.py", 77, "main"):
        with b.frame("torch/profiler/profiler.py", 776, "step"):
            b.advance(1_000)
            started(b)
        b.compute("aten::mm", 1_000)
        with b.frame("train.py", 20, "main"):
            b.compute("aten::add", 1_000)
    ctx = read(b)
    assert where(ctx, "aten::mm") == Location(
        "train.py", None, "main", "aten::mm", precision="function"
    )
    assert where(ctx, "aten::mm").place == "main (train.py)"
    assert where(ctx, "aten::add").line == 20


def test_the_top_level_of_a_file_has_no_line(read: Read) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 1, "<module>"):
        b.compute("aten::mm", 1_000)
    location = where(read(b), "aten::mm")
    assert (location.file, location.line, location.place) == ("train.py", None, "train.py")


def test_frames_of_other_threads_are_open_if_they_are_before_the_next_call(read: Read) -> None:
    b = TraceBuilder(stacks=True)
    with b.thread(7), b.frame("train.py", 300, "load"):
        b.advance(50)
        b.compute("aten::stack", 500)
    b.now_ns = 100
    with b.frame("train.py", 141, "main"):
        started(b)
        with b.thread(8), b.frame("train.py", 30, "work"):
            b.compute("aten::cat", 1_000)
    ctx = read(b)
    assert (where(ctx, "aten::stack").line, where(ctx, "aten::stack").function) == (None, "load")
    assert where(ctx, "aten::cat").line == 30


def test_a_profiler_that_starts_after_other_calls_says_nothing_on_open_frames(read: Read) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 5, "warm_up"):
        b.advance(1_000)
    with b.frame("train.py", 10, "main"):
        started(b)
        b.compute("aten::mm", 1_000)
    assert where(read(b), "aten::mm").line == 10


def test_a_comprehension_is_a_part_of_the_line_that_it_is_on(read: Read) -> None:
    lines = op_lines([("aten::select", -1, 3), ("aten::stack", -1, 4)], same_window=True)
    lines.frames[:] = [("/w/train.py", 3, "<listcomp>", 1), ("/w/train.py", 3, "alpha_bar", 1)]
    lines.external_id[:] = [1, 2]
    builder = TraceBuilder(stacks=True)
    builder.compute("aten::select", 100)
    builder.compute("aten::stack", 100)
    builder.capture = CaptureInfo(version="1", name="train", lines=lines)
    ctx = read(builder)
    assert where(ctx, "aten::select") == replace(where(ctx, "aten::stack"), op="aten::select")
    assert where(ctx, "aten::select").function == "alpha_bar"

    alone = replace(lines, frames=[("/w/train.py", 3, "<listcomp>", 1), ("/w/a.py", 4, "f", 1)])
    builder.capture = CaptureInfo(version="1", name="train", lines=alone)
    assert where(read(builder), "aten::select").function == "<listcomp>"
