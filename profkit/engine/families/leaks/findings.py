"""What grows as a finding: how severe, how sure, what it costs, and what it rests on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.causes import (
    is_estimate,
    leaks_of_cause,
    main_chain,
    merged,
    total_bytes,
    total_per_step_bytes,
)
from profkit.engine.families.leaks.messages import leak_location, sentences
from profkit.engine.wording import counted, known_locations
from profkit.model.finding import Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.live_memory import Leak

_DOUBT: Final[dict[int, Confidence]] = {0: "high", 1: "medium"}
_MOST_FRAMES: Final = 20
_MOST_CHAINS: Final = 3
LeakText = Callable[[Leak], str]
"""Says something of what grows."""


@dataclass(frozen=True)
class LeakThresholds:
    """When memory that grows is a finding.

    Attributes:
        min_step_bytes: Growth in a step that is worth telling. A list of plain
            tensors of one number each takes a tenth of it, and is kept on purpose.
        warning_step_bytes: Growth from which it is a warning. In ten thousand
            steps 64 KiB are 640 MB.
        error_step_bytes: Growth from which it is an error, if it is sure: in ten thousand steps
            8 MiB are 80 GB, more than one device and most hosts have.
        sure_steps_count: Judged steps from which their number leaves no doubt: what fills within
            twenty steps, or is emptied every twenty, has shown that it does.
    """

    min_step_bytes: int = 4096
    warning_step_bytes: int = 65536
    error_step_bytes: int = 8 << 20
    sure_steps_count: int = 20


@dataclass(frozen=True)
class UnintendedLeakThresholds(LeakThresholds):
    """When it is one that something grows which nobody means to keep: a graph, a hook's catch.

    Attributes:
        min_step_bytes: Growth in a step that is worth telling. What keeps less
            than a KiB grows by 10 MB in ten thousand steps, which nobody notices.
        warning_step_bytes: Growth from which it is a warning. No graph is kept on purpose without
            an end, and no hook is meant to hold anything, so it is one from 4 KiB a step: 40 MB in
            ten thousand steps.
        error_step_bytes: Growth from which it is an error, if it is sure: in ten thousand steps
            8 MiB are 80 GB, more than one device and most hosts have.
        sure_steps_count: Judged steps from which their number leaves no doubt: what fills within
            twenty steps, or is emptied every twenty, has shown that it does.
    """

    min_step_bytes: int = 1024
    warning_step_bytes: int = 4096


def leak_findings(
    info: RuleInfo, ctx: Context, limits: LeakThresholds, *, message: LeakText, fix: LeakText
) -> Iterator[Finding]:
    """A finding for each line or holder of what grows for the reason that a rule tells of.

    Args:
        info: The rule's card; its name is the reason.
        ctx: What was recorded; with watched memory.
        limits: The rule's thresholds.
        message: Says what was found.
        fix: Says what to write instead.
    """
    for group in leaks_of_cause(ctx, info.name):
        yield from _finding(info, ctx, group, limits, message=message, fix=fix)


def _finding(
    info: RuleInfo,
    ctx: Context,
    group: tuple[Leak, ...],
    limits: LeakThresholds,
    *,
    message: LeakText,
    fix: LeakText,
) -> Iterator[Finding]:
    """A finding on what one holder keeps, or none where it grows too little to tell."""
    growth = merged(group)
    if total_per_step_bytes(growth) < limits.min_step_bytes:
        return
    n_steps = ctx.live.n_evaluated_steps if ctx.live is not None else 0
    sure = _confidence(growth, n_steps, limits)
    lines = known_locations(*dict.fromkeys(map(leak_location, group)))
    others = counted(len(lines) - 1, "more line")
    more = f"{others} make{'s' if len(lines) == 2 else ''} what is kept there."  # noqa: PLR2004
    chains = dict.fromkeys(chain.parts for each in group for chain in each.chains)
    # Of workers one is read for all; a line or a holder of theirs is nobody's to see.
    is_unseen = growth.n > 1 if growth.kind == "workers" else growth.stack_basis == "unknown"
    is_approximate = is_estimate(growth) or is_unseen
    yield info.finding(
        severity=_severity(growth, sure, limits),
        confidence=sure,
        message=sentences(message(growth), more if len(lines) > 1 else ""),
        fix=fix(growth),
        locations=lines,
        n=max(growth.n, 1),
        cost=Cost(
            bytes=total_bytes(growth),
            per_step_bytes=total_per_step_bytes(growth),
            basis="estimate" if is_approximate else "measured",
        ),
        holders=tuple(chains)[:_MOST_CHAINS],
        evidence=_evidence(growth, n_steps),
    )


def _confidence(growth: Leak, n_steps: int, limits: LeakThresholds) -> Confidence:
    """Sure with steps enough, the line, and who holds it; each that is missing is a doubt."""
    if growth.kind == "workers":
        return _DOUBT.get((n_steps < limits.sure_steps_count) + 1, "low")
    is_held = bool(growth.cycle) if growth.kind == "garbage" else main_chain(growth) is not None
    doubts = [n_steps < limits.sure_steps_count, not growth.stack, not is_held]
    return _DOUBT.get(sum(doubts), "low")


def _severity(growth: Leak, sure: Confidence, limits: LeakThresholds) -> Severity:
    grown = total_per_step_bytes(growth)
    if grown >= limits.error_step_bytes and sure == "high":
        return "error"
    return "warning" if grown >= limits.warning_step_bytes else "note"


def _evidence(growth: Leak, n_steps: int) -> dict[str, EvidenceValue]:
    chain, graph = main_chain(growth), growth.graph
    facts: dict[str, EvidenceValue] = {
        "device": growth.device,
        "kind": growth.kind,
        "type": growth.type,
        "shape": growth.shape,
        "first_step": growth.first_step,
        "last_step": growth.last_step,
        "n_evaluated_steps": n_steps,
        "code": growth.code,
        "stack": [f"{f.file}:{f.line} {f.function}" for f in growth.stack[:_MOST_FRAMES]],
        "holder": chain.kind if chain else "",
        "container": chain.container if chain else "",
        "container_len": chain.container_len if chain else None,
        "graph_nodes": graph.n_nodes if graph else None,
        "graph_saved_bytes": graph.saved_bytes if graph else None,
        "graph_root": graph.root if graph else "",
        "cycle": list(growth.cycle),
    }
    return {name: value for name, value in facts.items() if value not in ("", None, [])}
