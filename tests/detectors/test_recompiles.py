"""recompiles finds recompilations in steps, and no first compilation."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.detectors import recompiles
from profkit.engine.context import Context
from profkit.model.capture_info import CaptureInfo, Compiled, Compiles
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from profkit.testing.trace_format import BASE_NS
from tests.traces import load_trace as load

RULE = "recompiles"
MS = 1_000_000
TRAIN = "/home/me/train.py"
CALL = (TRAIN, 12, "main")
SIZE = "0/{}: tensor 'x' size mismatch at index 0. expected {}, actual {}"
LIMIT = "Dynamo recompile limit exceeded\n  Explanation: ... exceeding the recompile_limit ..."
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def compile_once(b: TraceBuilder, number: str, ms: int, *, runs: bool = True) -> None:
    """Add what torch 2.13 writes of compiling a function and of its first run."""
    with b.op("dynamo"), b.op("_compile.compile_inner (dynamo_timed)"):
        b.compute("bytecode_tracing (dynamo_timed)", ms * MS // 2)
        b.compute("build_guards (dynamo_timed)", ms * MS // 2)
    if runs:
        run(b, number)


def run(b: TraceBuilder, number: str) -> None:
    with b.op(f"Torch-Compiled Region: {number}" if number else "Torch-Compiled Region"):
        b.compute("aten::mm", MS)


def told(*compiled: Compiled) -> CaptureInfo:
    return CaptureInfo(version="1", name="run", compiles=Compiles(list(compiled)))


def again(
    version: int, *, caller: tuple[str, int, str] | None = CALL, **changes: object
) -> Compiled:
    plain: dict[str, object] = {
        "number": f"0/{version}",
        "code": ("/lib/python3/site-packages/torch/_dynamo/external_utils.py", 67, "inner"),
        "caller": caller,
        "again": version > 0,
        "reason": SIZE.format(version - 1, version, version + 1) if version else "",
        "n_ops": 3,
    }
    return Compiled(**(plain | changes))  # type: ignore[arg-type]


def growing(
    first: int = 4,
    n: int = 3,
    *,
    ms: int = 40,
    capture: CaptureInfo | None = None,
    **options: object,
) -> TraceBuilder:
    """Steps of 10 ms beside what they compile, each a new version."""
    b = TraceBuilder(capture=capture, **options)  # type: ignore[arg-type]
    for version in range(first, first + n):
        with b.step(), b.frame(TRAIN, 5, "main"):
            compile_once(b, f"0/{version}", ms)
            b.compute("aten::add", 9 * MS)
    return b


def test_it_costs_the_time_of_compiling_and_reports_the_failed_guard(found: Found) -> None:
    b = growing(capture=told(*map(again, range(7))))

    (finding,) = found(b, RULE)
    # 40 ms of compiling and 10 ms of work in each of three steps.
    assert finding.cost.ns == 3 * 40 * MS
    assert finding.cost.per_step_ns == 40 * MS
    assert finding.cost.basis == "replay"
    assert sum(end - start for start, end in finding.spans) == 120 * MS
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 3)
    assert (finding.locations[0].file, finding.locations[0].line) == (TRAIN, 12)
    assert finding.message == (
        "The function called at train.py:12 is recompiled once per step, which takes 40.0 ms per "
        "step (80%). Failed guard: “tensor 'x' size mismatch at index 0. expected 4, actual 5”."
    )
    assert finding.fix.endswith(" Dimension 0 of `x` changes (4, then 5).")
    assert finding.evidence["n_versions"] == 7
    assert finding.evidence["compile_ns"] == 120 * MS


def test_a_trace_that_profkit_did_not_record_has_time_and_line_but_no_guard(
    found: Found,
) -> None:
    (finding,) = found(growing(), RULE)
    assert finding.cost.ns == 120 * MS
    assert (finding.locations[0].file, finding.locations[0].function) == (TRAIN, "main")
    assert finding.message.endswith("The failed guard was not recorded.")
    assert "TORCH_LOGS=recompiles" in finding.fix
    assert finding.severity == "warning"


def test_without_stacks_the_line_comes_from_what_torch_remembers(found: Found) -> None:
    b = TraceBuilder(capture=told(*map(again, range(7))))
    for version in (4, 5):
        with b.step():
            compile_once(b, f"0/{version}", 10)
    (finding,) = found(b, RULE)
    assert finding.locations[0].line == 12
    bare = TraceBuilder()
    for version in (4, 5):
        with bare.step():
            compile_once(bare, f"0/{version}", 10)
    (finding,) = found(bare, RULE)
    assert finding.cost.ns == 20 * MS
    assert finding.message.startswith("A function is recompiled once per step")


def test_the_number_is_read_from_the_row_of_compiling_where_it_is_known(found: Found) -> None:
    # What runs next is another function's, which was compiled before the window.
    b = TraceBuilder(capture=told(again(4), again(5)))
    for version in (4, 5):
        with b.step():
            with b.op("dynamo"), b.annotation(f"dynamo_data: compile_id=0/{version}"):
                b.advance(MS)
            run(b, "9/0")
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 2 * MS


def test_the_users_own_function_is_named_with_the_line_that_calls_it(found: Found) -> None:
    compiled_code: dict[str, Any] = {"code": (TRAIN, 30, "loss_of"), "is_users": True}
    b = growing(capture=told(*(again(version, **compiled_code) for version in range(7))))
    (finding,) = found(b, RULE)
    assert finding.message.startswith("`loss_of` (called at train.py:12) is recompiled once")
    assert [location.line for location in finding.locations] == [12, 30]


def test_first_compilations_are_not_recompiles(found: Found) -> None:
    b = TraceBuilder(capture=told(Compiled("0/0"), Compiled("1/0"), Compiled("2/0")))
    for number in ("0/0", "1/0", "2/0"):
        with b.step(), b.frame(TRAIN, 5, "main"):
            compile_once(b, number, 50)
    assert found(b, RULE) == ()


def test_the_second_version_right_behind_the_first_is_part_of_the_warm_up(found: Found) -> None:
    # PyTorch makes a size a variable when it has seen two.
    b = growing(first=0, n=2)
    with b.step():
        run(b, "0/1")
    assert found(b, RULE) == ()


def test_a_single_second_version_later_is_a_note(found: Found) -> None:
    b = TraceBuilder(capture=told(again(0), again(1)))
    for version in (None, 1, None):
        with b.step():
            if version is not None:
                compile_once(b, f"0/{version}", 50)
            run(b, "0/1")
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.message.startswith(
        "The function called at train.py:12 is recompiled once in 3 steps"
    )


def test_another_instance_of_a_class_is_compiled_for_the_first_time(found: Found) -> None:
    # Its code has been compiled before, so its number is 1/3, but torch gives no reason: for this
    # object it is the first time.
    compiled = Compiled("1/3", (TRAIN, 20, "forward"), is_users=True, caller=CALL)
    b = TraceBuilder(capture=told(compiled))
    for _ in range(2):
        with b.step():
            run(b, "1/2")
    with b.step():
        compile_once(b, "1/3", 50)
    assert found(b, RULE) == ()


def test_what_compiles_before_the_first_step_belongs_to_the_warm_up(found: Found) -> None:
    b = TraceBuilder(capture=told(*map(again, range(7))))
    for version in range(4, 7):
        compile_once(b, f"0/{version}", 50)
    for _ in range(3):
        with b.step():
            run(b, "0/6")
    assert found(b, RULE) == ()


def test_one_function_that_settles_does_not_hide_another_that_does_not(found: Found) -> None:
    b = TraceBuilder()
    for step in range(3):
        with b.step():
            with b.frame(TRAIN, 5, "main"):
                if step < 2:
                    compile_once(b, f"0/{step}", 50)
            with b.frame(TRAIN, 50, "evaluate"):
                compile_once(b, f"1/{step + 3}", 20)
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 60 * MS
    assert finding.locations[0].function == "evaluate"


def test_the_compiling_of_backward_passes_is_part_of_the_cost(found: Found) -> None:
    b = TraceBuilder(capture=told(*map(again, range(7))))
    for version in (4, 5):
        with b.step():
            compile_once(b, f"0/{version}", 40)
            with b.thread(99), b.op("CompiledFunctionBackward"):
                b.compute("compile_fx.<locals>.bw_compiler (dynamo_timed)", 20 * MS)
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 2 * 60 * MS
    assert finding.n == 2


def test_while_a_device_works_compiling_costs_nothing(found: Found) -> None:
    b = TraceBuilder(capture=told(*map(again, range(7))))
    for version in (4, 5):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=MS, device_ns=16 * MS)
            compile_once(b, f"0/{version}", 40)
            b.synchronize()
    (finding,) = found(b, RULE)
    # A step is 1 ms of launch, 40 of compiling and 1 of the compiled code. Without the compiling
    # the host waits for the kernel, from 1 to 17 ms, and as usual 1 µs or less for the return.
    assert finding.cost.ns == pytest.approx(2 * (42 - 17) * MS, abs=2_000)
    assert finding.evidence["compile_ns"] == 2 * 40 * MS


def test_before_numbers_a_line_that_compiles_in_several_steps_is_reported_without_confidence(
    found: Found,
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.frame(TRAIN, 5, "main"):
            b.compute("_compile.<locals>.compile_inner (dynamo_timed)", 30 * MS)
            run(b, "")
    (finding,) = found(b, RULE)
    assert finding.confidence == "low"
    assert finding.cost.ns == 2 * 30 * MS

    once = TraceBuilder()
    for step in range(3):
        with once.step(), once.frame(TRAIN, 5, "main"):
            if step == 1:
                once.compute("_compile.<locals>.compile_inner (dynamo_timed)", 30 * MS)
            run(once, "")
    assert found(once, RULE) == ()


def test_a_function_that_torch_gave_up_on_runs_uncompiled_and_is_reported(found: Found) -> None:
    limit = again(8, code=("", 0, ""), caller=None, failure=LIMIT)
    compiled_code: dict[str, Any] = {"code": (TRAIN, 30, "loss_of"), "is_users": True}
    capture = told(*(again(version, **compiled_code) for version in range(8)), limit)
    b = TraceBuilder(capture=capture)
    for step in range(3):
        with b.step(), b.frame(TRAIN, 30, "loss_of"):
            if step == 1:  # it is looked at once more, and not compiled
                with b.op("dynamo"), b.annotation("dynamo_data: compile_id=0/8"):
                    b.advance(MS)
            b.compute("aten::mm", MS)

    (finding,) = found(b, RULE)
    assert finding.cost.ns is None
    assert finding.message == (
        "`loss_of` at train.py:12 reached the recompile limit after 8 compilations, so calls that "
        "match none of these versions run uncompiled. Failed guard: “tensor 'x' size mismatch at "
        "index 0. expected 8, actual 9”."
    )
    assert finding.confidence == "high"

    elsewhere = TraceBuilder(capture=capture)
    for _ in range(3):
        with elsewhere.step(), elsewhere.frame(TRAIN, 70, "other"):
            elsewhere.compute("aten::mm", MS)
    assert found(elsewhere, RULE) == ()


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("tensor 'x' requires_grad mismatch. expected requires_grad=1", "require gradients"),
        ("n == 3                  # return x * n  # train.py:4 in f", "torch.tensor(value)"),
        ("self.key == 'sensor7'", "`torch._dynamo.config.recompile_limit`"),
        ("GLOBAL_STATE changed: grad_mode ", "one for training and one for evaluation"),
        ("BACKEND_MATCH failure: torch.compile detected different backend", "before the loop"),
        ("tensor 'x' stride mismatch at index 0. expected 4, actual 1", ".contiguous()"),
        ("tensor 'x' dtype mismatch. expected Float, actual Half", "of the same dtype"),
        (
            "Cache line invalidated because L['self'] got deallocated",
            "once before the loop, and reuse them",
        ),
        ("len(xs) == 3", "of the same length"),
        (
            "something that no version of torch says today",
            "Pass arguments that meet the same guards",
        ),
    ],
)
def test_the_fix_matches_the_reason(found: Found, reason: str, fix: str) -> None:
    versions = [again(version, reason=f"0/{version - 1}: {reason}") for version in range(1, 7)]
    (finding,) = found(growing(capture=told(again(0), *versions)), RULE)
    assert fix in finding.fix
    assert "# return" not in finding.message
    assert reason.split("  ", maxsplit=1)[0].strip() in finding.message


def test_compiling_of_less_than_a_hundredth_of_the_steps_is_a_note(found: Found) -> None:
    def steps(ms: int) -> TraceBuilder:
        b = TraceBuilder()
        for version in (4, 5):
            with b.step():
                compile_once(b, f"0/{version}", ms)
                b.compute("aten::add", (1000 - ms - 1) * MS)
        return b

    assert [found(steps(ms), RULE)[0].severity for ms in (8, 10)] == ["note", "warning"]


def test_of_two_versions_with_one_number_the_nearer_in_time_is_meant(found: Found) -> None:
    long_ago = again(4, reason="0/3: n == 7", start_ns=BASE_NS - 10**12)
    now = again(4, start_ns=BASE_NS)
    later = again(4, reason="0/3: n == 8", start_ns=BASE_NS + 10**12)
    (finding,) = found(growing(capture=told(long_ago, now, later), n=1), RULE)
    assert "size mismatch" in finding.message


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.booleans()), min_size=1, max_size=8)
)
@settings(max_examples=30, deadline=None)
def test_the_cost_is_the_sum_of_what_was_compiled_again_in_steps(
    tmp_path_factory: pytest.TempPathFactory, compiled: list[tuple[int, bool, bool]]
) -> None:
    # Each is 2·ms long, of a version that was or was not there before, within a step or outside.
    b = TraceBuilder()
    expected_ms = 0
    with b.step():
        b.compute("aten::add", MS)
    for function, (ms, is_again, in_step) in enumerate(compiled):
        number = f"{function}/{2 if is_again else 0}"
        if in_step:
            with b.step():
                compile_once(b, number, 2 * ms)
            expected_ms += 2 * ms * is_again
        else:
            compile_once(b, number, 2 * ms)
    path = b.write(tmp_path_factory.getbasetemp() / "recompiles.json")
    ctx = Context(load(path))

    costs = [finding.cost.ns or 0 for finding in recompiles.detect(ctx, recompiles.Thresholds())]
    assert sum(costs) == expected_ms * MS


def test_a_program_that_compiles_nothing_is_clean(found: Found, host_alone: TraceBuilder) -> None:
    assert found(host_alone, RULE) == ()


def test_without_steps_or_operators_it_is_skipped(
    analyzed: Analyzed, device_alone: TraceBuilder
) -> None:
    b = TraceBuilder()
    compile_once(b, "0/4", 10)
    for recording in (b, device_alone):
        report = analyzed(recording, RULE)
        assert not report.findings
        assert [check.rule for check in report.unchecked] == ["CMP001"]
