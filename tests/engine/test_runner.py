"""Running rules: what a rule lacks, what it costs, what happens when it crashes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from profkit.engine import needs, registry
from profkit.engine.context import Context
from profkit.engine.detector import Rule, RuleInfo
from profkit.engine.figures.summary import describe_source, summarize
from profkit.engine.needs import Need, first_unmet
from profkit.engine.registry import rules
from profkit.engine.runner import ranked, recoverable_ns, report_on, run_rules, thresholds_for
from profkit.errors import InternalError, PluginError, UsageError
from profkit.model.change import ProgramChange
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.testing import LiveBuilder, TraceBuilder
from tests.traces import load_trace as load
from tests.traces import read_context


@dataclass(frozen=True)
class Thresholds:
    min_share: float = 0.1


def nobody(stage: str, ns: int) -> None:
    """Nobody wants to know how long a stage took."""


def finding(rule: str = "SYN900", ns: int | None = None, **more: Any) -> Finding:  # noqa: ANN401
    return Finding(
        rule=rule,
        name="x",
        severity=more.pop("severity", "warning"),
        confidence="high",
        title="",
        message="",
        fix="",
        cost=Cost(ns=ns, bytes=more.pop("n_bytes", None)),
        **more,
    )


def rule(
    *found: Finding, id: str = "SYN900", needs: tuple[Need, ...] = (), crash: bool = False
) -> Rule:
    def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:  # noqa: ARG001
        yield from found
        if crash:
            raise ZeroDivisionError("oh")

    info = RuleInfo(
        id=id, name=f"name-of-{id}", title="", severity="warning", needs=needs, since="0"
    )
    module = SimpleNamespace(INFO=info, Thresholds=Thresholds, detect=detect, __name__=id)
    return cast("Rule", module)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    builder = TraceBuilder()
    with builder.step():
        builder.compute("aten::mm", 1_000)
    return read_context(builder, tmp_path)


@pytest.mark.parametrize(
    ("need", "met"),
    [(needs.OPERATORS, True), (needs.STEPS, True), (needs.DEVICE_WORK, False),
     (needs.ALLOCATIONS, False), (needs.ALLOCATION_ADDRESSES, False)],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_a_rule_whose_needs_are_not_met_is_skipped_with_a_reason_and_a_remedy(
    need: Need,
    met: bool,  # noqa: FBT001
    ctx: Context,
) -> None:
    outcome = run_rules(ctx, [rule(finding(), needs=(need,))], {}, on_stage=nobody)
    assert bool(outcome.findings) == met
    assert [u.rule for u in outcome.unchecked] == ([] if met else ["SYN900"])
    assert met or (outcome.unchecked[0].reason and outcome.unchecked[0].remedy)


def test_every_need_of_a_rule_can_be_unmet_and_has_sentences_for_it(tmp_path: Path) -> None:
    # Some needs are met by an empty recording.
    poor = [TraceBuilder() for _ in range(4)]
    poor[1].compute("CompiledFunction", 1_000)
    with poor[2].annotation("nccl:all_reduce"):
        poor[2].compute("c10d::allreduce_", 1_000)
    poor[3].call("LaunchKernel", 1_000)
    contexts = [Context(load(b.write(tmp_path / f"{i}.json"))) for i, b in enumerate(poor)]
    for need in {need for rule in rules() for need in rule.INFO.needs} - {needs.TRACE}:
        unmet = {first_unmet(context, [need]) for context in contexts} - {None}
        assert unmet, need.name
        assert all(
            requirement.reason.endswith(".") and requirement.remedy.endswith(".")
            for requirement in unmet
            if requirement
        )


def test_a_required_need_is_reported_before_the_need_that_requires_it(ctx: Context) -> None:
    assert first_unmet(ctx, [needs.ALLOCATION_ADDRESSES]) is needs.ALLOCATIONS
    assert first_unmet(ctx, [needs.HISTORY]) is needs.SNAPSHOT
    assert first_unmet(Context(), [needs.STEPS]) is needs.TRACE


def test_a_program_that_was_not_monitored_differs_from_one_monitored_over_too_few_steps(
    ctx: Context,
) -> None:
    assert first_unmet(ctx, [needs.MONITORED_STEPS]) is needs.MONITORING
    short = replace(ctx, live=LiveBuilder(n_steps=4, n_evaluated_steps=0).build())
    assert first_unmet(short, [needs.MONITORED_STEPS]) is needs.MONITORED_STEPS


def test_a_rule_that_crashes_is_unchecked_and_keeps_what_it_had_found(ctx: Context) -> None:
    outcome = run_rules(ctx, [rule(finding(), crash=True), rule(id="SYN901")], {}, on_stage=nobody)
    assert [u.rule for u in outcome.unchecked] == ["SYN900"]
    assert "ZeroDivisionError" in outcome.unchecked[0].reason


def test_a_rule_that_crashes_ends_a_strict_run_as_a_bug(ctx: Context) -> None:
    with pytest.raises(InternalError, match="SYN900") as bug:
        run_rules(ctx, [rule(crash=True)], {}, strict=True, on_stage=nobody)
    assert bug.value.exit_code == 70


def test_thresholds_are_the_users_where_they_differ() -> None:
    assert thresholds_for(rule(), {}).min_share == 0.1
    assert thresholds_for(rule(), {"name-of-SYN900": {"min_share": 0.3}}).min_share == 0.3


@pytest.mark.parametrize("changed", [{"min_shar": 0.3}, {"min_share": "much"}, {"min_share": True}])
def test_a_threshold_that_cannot_be_used_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="name-of-SYN900"):
        thresholds_for(rule(), {"name-of-SYN900": changed})


def test_findings_are_ranked_by_cost_and_notes_come_last() -> None:
    small, large, leak = finding(ns=5), finding(ns=50), finding(n_bytes=1 << 30)
    note = finding(ns=500, severity="note")
    assert ranked([note, leak, small, large]) == (large, small, leak, note)


def test_costs_of_other_steps_are_compared_per_step() -> None:
    recorded = replace(finding(), cost=Cost(ns=3_000, per_step_ns=1_000))
    of_run = replace(finding(), cost=Cost(per_step_ns=2_000))
    assert ranked([recorded, of_run]) == (of_run, recorded)


def test_findings_of_which_some_time_may_be_saved_are_ranked_by_how_much() -> None:
    none, little, more = (
        replace(finding(), cost=Cost(0, basis="replay", low_ns=0, high_ns=high_ns))
        for high_ns in (0, 5, 50)
    )
    assert ranked([none, little, more]) == (more, little, none)


def test_findings_of_the_same_cost_are_in_the_order_of_rule_and_line() -> None:
    places = [("SYN002", 1), ("SYN001", 9), ("SYN001", 3)]
    findings = [finding(rule, 5, locations=(Location("a.py", line),)) for rule, line in places]
    order = [(f.rule, f.locations[0].line) for f in ranked(findings)]
    assert order == sorted(places)


def test_the_recoverable_time_is_one_replay_with_the_changes_of_all_findings(
    tmp_path: Path,
) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mm", 70)
    ctx = read_context(b, tmp_path)
    changes = [ProgramChange(host_time=times) for times in (((0, 10), (20, 30)), ((5, 25),))]
    findings = [finding(change=change) for change in changes]
    assert [recoverable_ns(ctx, [finding]) for finding in findings] == [20, 20]
    assert recoverable_ns(ctx, findings) == 30
    assert recoverable_ns(ctx, [finding(), finding()]) == 0


def test_waits_one_after_the_other_save_time_only_together(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.step():
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
        b.synchronize()
        b.synchronize()
        b.advance(50_000)
    ctx = read_context(b, tmp_path)
    calls = ctx.syncs.rows

    first, second = (
        finding(change=ProgramChange(calls=calls[start : start + 1])) for start in (0, 1)
    )
    # The host waits for the kernel until 110 µs, calls again for 4, and goes on until 164. Without
    # the first wait the second takes its place; without both the step ends with the kernel.
    assert recoverable_ns(ctx, [first]) <= 5_000
    assert recoverable_ns(ctx, [second]) <= 5_000
    assert recoverable_ns(ctx, [first, second]) == 54_000


def test_faults_of_the_recording_are_health_not_findings(ctx: Context) -> None:
    rules = [rule(finding("PRF900"), id="PRF900"), rule(finding())]
    result = run_rules(ctx, rules, {}, on_stage=nobody)
    report = report_on(describe_source(ctx), summarize(ctx), result, 5)
    assert report.summary.recoverable_ns == 5
    assert [f.rule for f in report.findings] == ["SYN900"]
    assert [f.rule for f in report.health] == ["PRF900"]


def test_each_stage_is_told_with_its_time(ctx: Context) -> None:
    told: list[tuple[str, int]] = []
    run_rules(ctx, [rule()], {}, on_stage=lambda stage, ns: told.append((stage, ns)))
    assert [stage for stage, _ in told] == ["rule SYN900"]
    assert told[0][1] >= 0


def test_rules_are_chosen_by_id_name_and_family() -> None:
    rules_of = tuple(rule(id=i) for i in ("SYN001", "SYN002", "KER001"))

    def ids(*, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> list[str]:
        return [r.INFO.id for r in registry.choose_rules(rules_of, select, ignore)]

    assert ids() == ["SYN001", "SYN002", "KER001"]
    assert ids(select=("syn",)) == ["SYN001", "SYN002"]
    assert ids(select=("SYN", "name-of-KER001"), ignore=("SYN002",)) == ["SYN001", "KER001"]
    with pytest.raises(UsageError, match="SYN01") as unknown:
        ids(select=("SYN01",))
    assert "SYN001" in unknown.value.hint
    with pytest.raises(UsageError, match="All selected rules are ignored"):
        ids(select=("SYN001",), ignore=("SYN",))


def test_two_rules_of_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "discover", lambda *_: iter([rule(), rule()]))
    registry.rules.cache_clear()
    try:
        with pytest.raises(PluginError, match="SYN900"):
            registry.rules()
    finally:
        registry.rules.cache_clear()
