"""Predictions against times that follow from the recorded program by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import profkit
from profkit.api import study
from profkit.engine.figures.critical_path import summarize_critical_path
from profkit.engine.what_if import predict as predict_with
from profkit.engine.what_if import predict_combinations
from profkit.errors import NotATraceError, UsageError
from profkit.index.replay.critical_path import find_critical_path
from profkit.model.change import ProgramChange
from profkit.model.critical_path import PathKind
from profkit.model.what_if import PredictedTime, Prediction
from profkit.testing import SnapshotBuilder, TraceBuilder
from tests.index.replay.test_replay import each_recording, load_context
from tests.traces import load_trace, read_context

US = 1_000
Predict = Callable[..., Prediction]


@pytest.fixture
def predict(tmp_path: Path) -> Predict:
    def predicted(b: TraceBuilder, **changes: Any) -> Prediction:  # noqa: ANN401  (those of what_if)
        return profkit.what_if(b.write(tmp_path / "made.pt.trace.json"), **changes)

    return predicted


def waiting() -> TraceBuilder:
    """Steps of 111 µs: 6 µs of an operator, 4 µs of its launch, 100 µs of the kernel."""
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 10, "forward"):
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=100 * US)
            b.synchronize()
            b.advance(1 * US)
    return b


def spread() -> TraceBuilder:
    """Steps of 160 µs: three launches, each after 50 µs, of kernels of 10 µs."""
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            for _ in range(3):
                b.launch("aten::add", kernel="add", host_ns=50 * US, device_ns=10 * US)
            b.synchronize()
    return b


def loading(loader_ns: int) -> TraceBuilder:
    """Steps of a wait for a batch and 30 µs of an operator."""
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.load(loader_ns)
            b.compute("aten::mm", 30 * US)
    return b


def test_a_shorter_kernel_ends_the_wait_for_it_earlier(predict: Predict) -> None:
    result = predict(waiting(), scale={"gemm": 0.5})

    assert (result.before_ns, result.after_ns) == (111 * US, 61 * US)
    assert (result.saving_ns, result.min_after_ns, result.max_saving_ns) == (50_000, 61_000, 50_000)
    assert result.critical_path_before_ns == {
        "operator": 6 * US,
        "python": 1 * US,
        "runtime": 4 * US,
        "kernel": 100 * US,
    }
    assert result.critical_path_after_ns == {
        "operator": 6 * US,
        "python": 1 * US,
        "runtime": 4 * US,
        "kernel": 50 * US,
    }

    (change,) = result.changes
    assert (change.kind, change.target, change.factor) == ("scale", "gemm", 0.5)
    assert change.matched == {"kernels": 2}
    assert (result.basis, result.unexplained_share, result.is_upper_bound) == ("replay", 0.0, False)
    assert result.n_steps == 2


def test_an_operator_changes_with_its_kernel(predict: Predict) -> None:
    result = predict(waiting(), scale={"aten::mm": 0.5})
    assert result.after_ns == 56 * US
    assert result.changes[0].matched == {"operators": 2}


@pytest.mark.parametrize("pattern", ["train.py(10): forward", "*: forward"])
def test_a_function_changes_with_all_that_it_launches(pattern: str, predict: Predict) -> None:
    result = predict(waiting(), scale={pattern: 0.5})
    # Half of the operator, of the kernel, and of the time after the wait for it.
    assert result.after_ns == 55 * US + 500
    assert result.changes[0].matched == {"Python functions": 2}


def test_a_function_with_factor_0_no_longer_waits(predict: Predict) -> None:
    assert predict(waiting(), scale={"*: forward": 0}).after_ns == 0


def test_a_runtime_call_changes_without_what_it_launches(
    predict: Predict,
) -> None:
    result = predict(waiting(), scale={"cudaLaunchKernel": 0})
    assert result.after_ns == 107 * US
    assert result.changes[0].matched == {"runtime calls": 2}


def test_a_pattern_that_matches_device_work_leaves_the_host(
    predict: Predict,
) -> None:
    result = predict(waiting(), scale={"*m*": 0.5})  # also aten::mm and train.py(10): forward
    assert result.after_ns == 61 * US


def test_several_changes_are_made_at_once(predict: Predict) -> None:
    # 10 µs of the operator become 5 µs and the kernel a tenth of its half.
    result = predict(waiting(), scale={"aten::mm": 0.5, "gemm": 0.1})
    assert result.after_ns == (5 + 5 + 1) * US
    graph = predict(spread(), scale={"add": 0.5}, graph=True)
    assert graph.after_ns == (50 + 3 * 5 + 2) * US
    assert len(graph.changes) == 2


def test_two_changes_within_one_host_period_add_up(predict: Predict) -> None:
    # Nothing but the step's ends divides 100 µs of loading and 30 µs of the operator.
    result = predict(loading(100 * US), scale={"aten::mm": 0.5}, data_wait=False)
    assert (result.before_ns, result.after_ns) == (130 * US, 15 * US)
    assert result.critical_path_before_ns == {"operator": 30 * US, "data-wait": 100 * US}
    assert result.critical_path_after_ns == {"operator": 15 * US}


def test_slower_work_takes_longer(predict: Predict) -> None:
    result = predict(waiting(), scale={"gemm": 1.5})
    assert (result.after_ns, result.saving_ns) == (161 * US, -50 * US)


def test_a_graph_takes_one_launch_and_the_usual_gaps(predict: Predict) -> None:
    result = predict(spread(), graph=True)
    assert result.before_ns == 160 * US
    # The first launch ends after 50 µs; three kernels follow, 1 µs apart.
    assert result.after_ns == (50 + 3 * 10 + 2) * US
    assert result.changes[0].matched == {"launches": 6}
    assert result.critical_path_after_ns["gap"] == 2 * US


def test_a_graph_keeps_blocking_calls_and_waits_for_data(
    predict: Predict,
) -> None:
    b = TraceBuilder()
    with b.step():
        b.launch("aten::add", kernel="add", host_ns=50 * US, device_ns=10 * US)
        b.synchronize()  # 10 µs
        b.advance(30 * US)
        b.load(20 * US)
        b.launch("aten::add", kernel="add", host_ns=50 * US, device_ns=10 * US)
        b.synchronize()
    result = predict(b, graph=True)
    assert result.before_ns == 170 * US
    assert result.after_ns == (50 + 10 + 20 + 10) * US


def test_without_waits_for_data_a_step_has_the_rest(predict: Predict) -> None:
    result = predict(loading(5_000 * US), data_wait=False)
    assert (result.before_ns, result.after_ns) == (5_030 * US, 30 * US)
    assert result.changes[0].matched == {"waits": 3}


def reading(lines: Sequence[int] = (41, 43)) -> TraceBuilder:
    """Steps with a kernel of 200 µs and ``item()`` at some lines, then 300 µs on the host."""
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step():
            for line in lines:
                with b.frame("train.py", line, "log"):
                    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=200 * US)
                    b.item()
            b.advance(300 * US)
    return b


def test_removed_findings_no_longer_block_the_host(predict: Predict) -> None:
    result = predict(reading(), remove=["SYN001"])
    (change,) = result.changes
    assert (change.kind, change.target, change.matched) == ("remove", "SYN001", {"findings": 2})
    recorded = predict(reading(), scale={"gemm": 1})
    # The host no longer waits for the kernels, which run while it works.
    assert recorded.before_ns == result.before_ns
    assert 0 < result.saving_ns <= 2 * 200 * US
    case = predict(reading(), remove=["SYN001@train.py:41"])
    assert case.changes[0].matched == {"findings": 1}
    assert 0 < case.saving_ns < result.saving_ns
    assert predict(reading(), remove="item-sync").after_ns == result.after_ns
    assert predict(reading(), remove=["SYN001@train.py"]).after_ns == result.after_ns


def test_the_saving_of_a_removed_finding_is_its_cost(predict: Predict, tmp_path: Path) -> None:
    path = reading().write(tmp_path / "reading.pt.trace.json")
    findings = [finding for finding in profkit.analyze(path).findings if finding.rule == "SYN001"]
    for finding in findings:
        (where,) = finding.locations
        result = predict(reading(), remove=[f"SYN001@{where.file}:{where.line}"])
        assert result.saving_ns == finding.cost.per_step_ns
    assert len(findings) == 2


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        (["SYN001@other.py"], "SYN001 has no finding at other.py .* train.py:41, train.py:43"),
        (["SYN001@train.py:42"], "no finding at train.py:42"),
        (["DAT001"], "DAT001 has no finding in "),
        (["MEM011"], "MEM011 could not be checked"),
        (["DAT"], "DAT has no finding in "),
    ],
)
def test_rules_without_findings_are_an_error(
    remove: list[str], message: str, predict: Predict
) -> None:
    with pytest.raises(UsageError, match=message):
        predict(reading(), remove=remove)


def test_combinations_agree_with_single_predictions(tmp_path: Path) -> None:
    path = reading().write(tmp_path / "reading.pt.trace.json")
    studied = study(path)
    ctx, rules = studied.recording.context, ["SYN001@train.py:41", "SYN001@train.py:43"]
    changes = []
    for rule in rules:
        _, _, line = rule.rpartition(":")
        changes += [
            finding.change
            for finding in studied.report.findings
            if finding.change is not None and finding.locations[0].line == int(line)
        ]

    predicted = predict_combinations(ctx, changes)
    assert sorted(predicted.times) == [0, 1, 2, 3]

    for number, chosen in ((1, rules[:1]), (2, rules[1:]), (3, rules)):
        alone = profkit.what_if(path, remove=chosen)
        assert predicted.times[number] == PredictedTime(alone.after_ns, alone.min_after_ns)
    assert predicted.times[0].after_ns == profkit.what_if(path, remove=rules).before_ns


def test_too_many_combinations_are_reduced_to_singles_pairs_and_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = read_context(waiting(), tmp_path)
    changes = [ProgramChange(calls=ctx.syncs.rows)] * 4
    assert sorted(predict_combinations(ctx, changes).times) == [*range(16)]
    of_one = 2 * (len(ctx.replay.graph) + 3_000)
    monkeypatch.setattr("profkit.engine.what_if._MAX_NODES", 12 * of_one)
    pairs = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15]
    assert sorted(predict_combinations(ctx, changes).times) == pairs
    monkeypatch.setattr("profkit.engine.what_if._MAX_NODES", 12 * of_one - 1)
    assert sorted(predict_combinations(ctx, changes).times) == [0, 1, 2, 4, 8, 15]


def test_a_kernel_is_matched_by_the_short_name_of_reports_too(
    predict: Callable[..., Prediction],
) -> None:
    b = TraceBuilder()
    for _ in range(2):
        b.launch(
            "aten::add",
            kernel="void cudnn::detail::dgrad_engine<float, 512>(int, float const*)",
            host_ns=10 * US,
            device_ns=100 * US,
        )
        b.synchronize()
    for pattern in ("dgrad_engine*", "void cudnn::*"):
        assert predict(b, scale={pattern: 0.5}).after_ns == 120 * US


def test_a_recording_without_steps_is_predicted_as_a_whole(
    predict: Predict,
) -> None:
    b = TraceBuilder()
    for _ in range(2):
        b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=100 * US)
        b.synchronize()
    result = predict(b, scale={"gemm": 0.5})
    assert (result.n_steps, result.before_ns, result.after_ns) == (0, 220 * US, 120 * US)


def test_much_unexplained_time_makes_it_an_upper_bound(predict: Predict) -> None:
    b = TraceBuilder()
    with b.step():
        ident = b.call("LaunchKernel", 4 * US)
        # 90 µs after its launch, for no recorded reason.
        b.kernel("gemm", 10 * US, correlation=ident, at_ns=94 * US)
        b.advance(200 * US)
    with b.step():
        b.advance(10 * US)
        b.synchronize()

    assert not predict(b, scale={"gemm": 0.5}).is_upper_bound  # not on the critical path

    b = TraceBuilder()
    with b.step():
        ident = b.call("LaunchKernel", 4 * US)
        b.kernel("gemm", 10 * US, correlation=ident, at_ns=94 * US)
        b.advance(1 * US)
        # Another device works meanwhile, so that the first one may be waiting for it.
        b.kernel("other", 61 * US, device=1, at_ns=10 * US)
    result = predict(b, scale={"gemm": 0.5})
    assert result.before_ns == 104 * US
    assert result.unexplained_share == pytest.approx((90 - 5) / 104)
    assert (result.basis, result.is_upper_bound) == ("upper-bound", True)


def test_a_loaded_trace_is_accepted(tmp_path: Path) -> None:
    path = waiting().write(tmp_path / "a.pt.trace.json")
    loaded = load_trace(path)
    assert profkit.what_if(loaded, scale={"gemm": 0.5}) == profkit.what_if(
        path, scale={"gemm": 0.5}
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "No change is given."),
        ({"remove": ["XYZ999"]}, "There is no rule XYZ999."),
        ({"scale": {"conv*": 0.5}}, r"Nothing in .* is named 'conv\*'. .*such as 'train.py"),
        ({"scale": {"GEM": 0.5}}, "A pattern matches whole names, such as 'gemm'"),
        ({"scale": {"gemm": -1}}, "The factor of 'gemm' is -1. .* 0 or more"),
        ({"scale": {"gemm": float("nan")}}, "The factor of 'gemm' is nan."),
        ({"scale": {"gemm": "half"}}, "'half', which is not a number"),
        ({"data_wait": False}, "has no wait for a batch"),
    ],
)
def test_what_cannot_be_predicted_is_an_error_with_a_sentence(
    changes: dict[str, Any], message: str, predict: Predict
) -> None:
    with pytest.raises(UsageError, match=message):
        predict(waiting(), **changes)


def test_a_graph_needs_steps_with_launches(predict: Predict) -> None:
    with pytest.raises(UsageError, match=r"No step of .* launches device work"):
        predict(loading(100 * US), graph=True)
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=100 * US)
    with pytest.raises(UsageError, match="has no steps"):
        predict(b, graph=True)


def test_a_snapshot_cannot_be_replayed(tmp_path: Path) -> None:
    snapshot = SnapshotBuilder()
    snapshot.alloc(1 << 20)
    path = snapshot.write(tmp_path / "a.pickle")
    with pytest.raises(NotATraceError, match="is not a trace"):
        profkit.what_if(path, graph=True)


@each_recording
def test_the_report_and_a_prediction_without_changes_have_the_same_path(path: Path) -> None:
    ctx = load_context(path)
    summary, unchanged = summarize_critical_path(ctx), predict_with(ctx, ())
    if summary is None:
        assert unchanged.before_ns == 0 or not ctx.has_program
        return
    reported = {part.kind: part.per_step_ns or part.ns for part in summary.parts}
    assert sum(part.ns for part in summary.parts) == summary.total_ns == ctx.replay.recorded_ns
    assert unchanged.before_ns == unchanged.after_ns == summary.mean_ns == sum(reported.values())
    before, after = unchanged.critical_path_before_ns, unchanged.critical_path_after_ns
    assert before == {kind: ns for kind, ns in reported.items() if ns}
    assert after == before
    starts, ends = ctx.replay.windows
    assert summary.total_ns == int((ends - starts).sum())


@each_recording
def test_the_path_after_changes_has_the_length_of_the_replay(path: Path) -> None:
    ctx = load_context(path)
    replay, work = ctx.replay, ctx.launches.work
    waits = ProgramChange(scaled=((ctx.data_waits, 0.0),))
    for change in (
        ProgramChange(calls=ctx.syncs.rows),
        ProgramChange(
            calls=ctx.syncs.rows, scaled=((work, 0.5), (ctx.tree.rows[::3].astype(np.intp), 0.3))
        ),
        ProgramChange(captured=work, host_time=((0, int(replay.graph.time_ns.max())),)),
        waits,
    ):
        critical_path = find_critical_path(replay, ctx.path_activity, change)
        length_ns = replay.length_ns(replay.replay(change))
        assert critical_path.lengths_ns.sum() == length_ns <= replay.recorded_ns
        # In time order, without overlap.
        assert (critical_path.lengths_ns > 0).all()
        assert (critical_path.starts_ns[1:] >= critical_path.ends_ns[:-1]).all()

    kinds = find_critical_path(replay, ctx.path_activity, waits).kind
    assert PathKind.DATA_WAIT not in kinds
