"""Every leak of a monitored program is reported once, by one rule, and can be rendered."""

from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.api import analyze, render
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.families.leaks.causes import Cause, find_leaks, merge_leaks
from profkit.engine.registry import rules
from profkit.model.leak_bytes import total_bytes, total_per_step_bytes
from profkit.model.live_memory import Chain, Graph, Leak, TensorShape
from profkit.model.location import Frame
from profkit.testing import LiveBuilder

LEAK_RULES = tuple(rule for rule in rules() if rule.INFO.name in get_args(Cause))
names = st.text(max_size=30) | st.sampled_from(
    ["losses", "[3]", "['k']", " → kept", " in main at a.py:3", ".cache", "._forward_hooks", "`"]
)
frames = st.builds(
    Frame, names, st.integers(1, 10**6), names, st.sampled_from(["line", "function"])
)
chains = st.builds(
    Chain,
    st.sampled_from(["module-global", "closure", "cache", "traceback", "hook", "thread",
                     "generator", "context", "optimizer", "unknown"]),
    st.lists(names, max_size=6).map(tuple),
    names,
    st.none() | st.integers(0, 10**9),
)  # fmt: skip
graphs = st.builds(Graph, st.integers(0, 10**7), st.integers(0, 10**13), names, st.booleans())
any_leaks = st.builds(
    Leak,
    kind=st.sampled_from(["tensors", "graph", "garbage", "host"]),
    device=st.sampled_from(["cpu", "cuda:0", "pinned", "host"]),
    per_step_bytes=st.integers(0, 10**12),
    bytes=st.integers(0, 10**13),
    n=st.integers(0, 10**7),
    first_step=st.integers(1, 100),
    last_step=st.integers(100, 10**6),
    type=names,
    stack=st.lists(frames, max_size=3).map(tuple),
    stack_basis=st.sampled_from(["seen", "node", "unknown"]),
    code=names | st.sampled_from(["losses.append(loss)", "total += loss", "x = f(y)"]),
    chains=st.lists(chains, max_size=3).map(tuple),
    graph=st.none() | graphs,
    nodes_per_step=st.floats(0, 1e6),
    cycle=st.lists(names, max_size=4).map(tuple),
    shape=st.none()
    | st.builds(
        TensorShape,
        dtype=names,
        dims=st.none() | st.lists(st.integers(0, 10**10), max_size=3).map(tuple),
        element_bytes=st.integers(0, 16),
    ),
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(leaks=st.lists(any_leaks, max_size=5), n_evaluated_steps=st.integers(1, 400))
def test_any_leak_is_reported_by_its_rule_and_can_be_rendered(
    tmp_path: Path, leaks: list[Leak], n_evaluated_steps: int
) -> None:
    builder = LiveBuilder(n_evaluated_steps=n_evaluated_steps)
    for leak in leaks:
        builder.add(leak)
    report = analyze(builder.write(tmp_path / "any.memory.json.gz"), strict=True)
    limits = {rule.INFO.name: rule.Thresholds() for rule in LEAK_RULES}
    ctx = Context(live=builder.build())
    expected = [
        name
        for name in map(attrgetter("INFO.name"), LEAK_RULES)
        for group in find_leaks(ctx, name)
        if total_per_step_bytes(merge_leaks(group)) >= limits[name].min_step_bytes
        or total_bytes(merge_leaks(group)) >= limits[name].min_total_bytes
    ]

    assert sorted(finding.name for finding in report.findings) == sorted(expected)
    for finding in report.findings:
        assert finding.message.endswith(".")
        assert finding.fix.endswith(".")
        assert finding.n >= 1
    for name, options in (("text", {"width": 40, "verbose": True}), ("md", {}), ("json", {})):
        assert render(report, name, **options)


def build_all_leaks() -> LiveBuilder:
    """Build a program with every cause of leaks."""
    builder = LiveBuilder()
    line = (Frame("train.py", 31, "main"),)
    mine = ("__main__", ".kept", "[3]")

    def add(kind: str, device: str, holder: str, graph: Graph | None = None) -> None:
        name = f"kept{len(builder.build().leaks)}"
        chains = () if kind == "garbage" else (Chain(holder, mine, "list", 200, name),)  # type: ignore[arg-type]

        builder.add(
            Leak(
                kind,  # type: ignore[arg-type]
                device,
                1 << 20,
                200 << 20,
                200,
                1,
                200,
                stack=line,
                stack_basis="seen",
                chains=chains,
                graph=graph,
                cycle=("A", "dict", "A"),
            )
        )

    add("tensors", "cpu", "module-global", Graph(1400, 190 << 20, "MeanBackward0"))
    add("tensors", "cpu", "module-global")
    add("tensors", "cpu", "hook")
    add("garbage", "cpu", "")
    add("tensors", "cpu", "traceback")
    add("tensors", "cpu", "cache")
    add("host", "host", "module-global")
    add("tensors", "pinned", "module-global")
    return builder


def test_leaks_of_every_cause_are_reported_once_each(tmp_path: Path) -> None:
    report = analyze(build_all_leaks().write(tmp_path / "t.memory.json.gz"), strict=True)
    assert sorted(finding.rule for finding in report.findings) == [
        rule.INFO.id for rule in LEAK_RULES
    ]
    assert {finding.severity for finding in report.findings} == {"warning"}
    assert {finding.confidence for finding in report.findings} == {"high"}


def test_a_program_without_a_leak_has_no_finding(tmp_path: Path) -> None:
    report = analyze(LiveBuilder().write(tmp_path / "t.memory.json.gz"), strict=True)
    assert report.findings == ()
    assert not {rule.INFO.id for rule in LEAK_RULES} & {check.rule for check in report.unchecked}


@pytest.mark.parametrize("rule", LEAK_RULES, ids=lambda rule: rule.INFO.name)
def test_leak_rules_have_the_thresholds_of_their_findings(rule: Rule) -> None:
    # Growth that nothing explains has a bound of its own.
    own_thresholds = {"min_unexplained_step_bytes"} if rule.INFO.name == "host-growth" else set()
    assert {field.name for field in fields(rule.Thresholds)} - own_thresholds == {
        "min_step_bytes",
        "min_total_bytes",
        "warning_step_bytes",
        "error_step_bytes",
        "sure_steps_count",
    }
    limits = rule.Thresholds()
    assert limits.min_step_bytes <= limits.warning_step_bytes <= limits.error_step_bytes
