"""The rules on compiling say something sound of whatever compiles, runs and is remembered."""

import random
from pathlib import Path

import numpy as np
import pytest

from profkit.detectors import graph_breaks, recompiles
from profkit.engine.context import Context
from profkit.engine.windows import windows, windows_ns
from profkit.model.capture_info import CaptureInfo, CodePlace, Compiled, Compiles, GraphBreak
from profkit.testing import TraceBuilder
from tests.traces import read_context

FUNCTIONS = ("forward", "torch_dynamo_resume_in_forward_at_2", "<resume in forward>", "step")
TEXTS = ("", "n == 3", "recompile_limit", "torch.compiler.disable", "print", "0/1: size mismatch")


def place(r: random.Random) -> CodePlace:
    return r.choice(["/a/train.py", "/a/net.py", ""]), r.randint(1, 3), r.choice(FUNCTIONS)


def number(r: random.Random) -> str:
    return r.choice(["", "!0/", "", ""]) + f"{r.randint(0, 3)}/{r.randint(0, 3)}"


def draw_capture(r: random.Random) -> CaptureInfo | None:
    if r.random() < 0.3:
        return None
    compiled = [
        Compiled(
            number=number(r),
            code=place(r),
            is_users=r.random() < 0.5,
            caller=r.choice([None, place(r)]),
            start_ns=r.choice([None, r.randint(0, 10**19)]),
            n_ops=r.choice([None, 0, 3]),
            again=r.random() < 0.5,
            reason=r.choice(TEXTS),
            failure=r.choice(TEXTS) if r.random() < 0.3 else "",
        )
        for _ in range(r.randint(0, 8))
    ]
    breaks = [
        GraphBreak(r.choice(TEXTS), [place(r) for _ in range(r.randint(0, 3))], r.randint(-2, 3))
        for _ in range(r.randint(0, 4))
    ]

    return CaptureInfo(version="1", name="run", compiles=Compiles(compiled, breaks))


def add_random_work(b: TraceBuilder, r: random.Random, depth: int = 0) -> None:
    for _ in range(r.randint(0, 3)):
        b.advance(r.randint(0, 50))
        kind = r.randint(0, 5)

        if kind == 0:
            b.compute(r.choice(["aten::mm", "TorchDynamo Cache Lookup"]), r.randint(0, 50))
        elif kind == 1:
            b.launch("aten::mm", kernel="gemm", host_ns=r.randint(1, 20), device_ns=30)
        elif kind == 2:
            with b.op(r.choice(["dynamo", "_compile (dynamo_timed)", "x (dynamo_timed)"])):
                if r.random() < 0.5:
                    with b.annotation(f"dynamo_data: compile_id={number(r)}"):
                        b.advance(5)
                b.advance(r.randint(0, 50))
        elif depth < 4:
            name = r.choice(["", f": {number(r)}", f": {number(r)}"])
            with b.thread(r.choice([1, 1, 2])), b.op(f"Torch-Compiled Region{name}"):
                if r.random() < 0.3:
                    with b.frame(*place(r)):
                        add_random_work(b, r, depth + 1)
                else:
                    add_random_work(b, r, depth + 1)


def is_serial(ctx: Context) -> bool:
    """Return whether all events are of one thread of the host."""
    return not ctx.has_device_work and len(np.unique(ctx.events.lane)) == 1


@pytest.mark.parametrize("seed", range(150))
def test_costs_are_within_the_steps_and_of_one_thread_the_time_that_goes(
    tmp_path: Path, seed: int
) -> None:
    r = random.Random(seed)  # noqa: S311  (the same shapes each time)
    b = TraceBuilder(capture=draw_capture(r))
    for _ in range(r.randint(1, 4)):
        with b.step():
            add_random_work(b, r)
            b.advance(1)
        if r.random() < 0.3:
            add_random_work(b, r)
    ctx = read_context(b, tmp_path)
    findings = [
        *recompiles.detect(ctx, recompiles.Thresholds()),
        *graph_breaks.detect(ctx, graph_breaks.Thresholds()),
    ]
    for finding in findings:
        assert 0 <= (finding.cost.ns or 0) <= windows_ns(ctx)
        starts, ends = windows(ctx)
        assert all(starts.min() <= start < end <= ends.max() for start, end in finding.spans)
        if finding.change is not None and is_serial(ctx):
            # One thread alone: every nanosecond that goes from it is saved.
            removed = [rows for rows, _ in finding.change.scaled]
            pairs = [
                *finding.change.host_time,
                *(
                    (ctx.events.ts_ns[row], ctx.events.end_ns[row])
                    for rows in removed
                    for row in rows
                ),
            ]
            moments = {at for start, end in pairs for at in range(start, end)}
            inside = [at for at in moments if starts.min() <= at < ends.max()]
            assert finding.cost.ns == len(inside)
        assert finding.n >= 1
        assert finding.message.endswith(".")
        assert finding.fix

    lines = [(f.rule, f.locations[0] if f.locations else None, f.message) for f in findings]
    assert len(set(lines)) == len(lines)
