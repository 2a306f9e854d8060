"""Leaks as findings: severity, confidence, cost and evidence."""

from collections.abc import Callable, Iterator
from typing import Final

from profkit.dataclass import dataclass, replace
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.causes import cause_of, find_leaks, main_chain, merge_leaks
from profkit.engine.families.leaks.messages import (
    bytes_by_holder,
    describe_holders,
    emptying_fix,
    holder_name,
    leak_location,
    list_other_holders,
    quoted,
    sentences,
)
from profkit.engine.wording import counted, known_locations, listed
from profkit.model.finding import Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.leak_bytes import is_estimate, total_bytes, total_growth, total_per_step_bytes
from profkit.model.live_memory import Leak

_DOUBT: Final[dict[int, Confidence]] = {0: "high", 1: "medium"}
_MAX_FRAMES: Final = 20
_MAX_CHAINS: Final = 3
LeakText = Callable[[Leak], str]
"""A message or fix for a leak."""


@dataclass(frozen=True)
class LeakThresholds:
    """When a leak is a finding.

    Attributes:
        min_step_bytes: Minimum growth per step. A list of scalar tensors takes a tenth of it, and
            is retained on purpose.
        min_total_bytes: Less growth per step is a finding too if it has reached this much: it
            came every few steps of many.
        warning_step_bytes: Growth per step from which it is a warning: 64 KiB are 640 MB in ten
            thousand steps.
        error_step_bytes: Growth per step from which it is an error, with high confidence: 8 MiB are
            80 GB in ten thousand steps, more than one device and most hosts have.
        sure_steps_count: Evaluated steps from which their number leaves no doubt: a buffer that
            fills within twenty steps, or is emptied every twenty, has done so by then.
    """

    min_step_bytes: int = 4096
    min_total_bytes: int = 1 << 20
    warning_step_bytes: int = 65536
    error_step_bytes: int = 8 << 20
    sure_steps_count: int = 20


@dataclass(frozen=True)
class UnintendedLeakThresholds(LeakThresholds):
    """When a leak is a finding that is never intended: of a graph, or by a hook.

    Attributes:
        min_step_bytes: Minimum growth per step. Less than 1 KiB is 10 MB in ten thousand steps,
            which nobody notices.
        min_total_bytes: Less growth per step is a finding too if it has reached this much: a
            hundred graphs of a few nodes do.
        warning_step_bytes: Growth per step from which it is a warning. No graph is retained forever
            on purpose, and no hook is meant to retain anything, so 4 KiB are enough: 40 MB in ten
            thousand steps.
    """

    min_step_bytes: int = 1024
    min_total_bytes: int = 256 << 10
    warning_step_bytes: int = 4096


def leak_findings(
    info: RuleInfo, ctx: Context, limits: LeakThresholds, *, message: LeakText, fix: LeakText
) -> Iterator[Finding]:
    """Yield a finding for each line or holder of the leaks that a rule reports.

    Args:
        info: The rule; its name is the cause of the leaks.
        limits: The rule's thresholds.
    """
    for group in find_leaks(ctx, info.name):
        yield from _build_finding(info, ctx, group, limits, message=message, fix=fix)


def _build_finding(
    info: RuleInfo,
    ctx: Context,
    group: tuple[Leak, ...],
    limits: LeakThresholds,
    *,
    message: LeakText,
    fix: LeakText,
) -> Iterator[Finding]:
    """Yield the finding on the leaks of one holder, or none if they grow too little."""
    leak = merge_leaks(group)
    if (
        total_per_step_bytes(leak) < limits.min_step_bytes
        and total_bytes(leak) < limits.min_total_bytes
    ):
        return

    n_steps = ctx.live.n_evaluated_steps if ctx.live is not None else 0
    confidence = _confidence(leak, n_steps, limits)

    lines = known_locations(*dict.fromkeys(map(leak_location, group)))
    more = describe_holders(group) or _count_more_lines(len(lines) - 1)

    # Each holder once, before further chains to any of them.
    main = [chain for part in group if (chain := main_chain(part)) is not None]
    further = [chain for part in group for chain in part.chains]
    chains = dict.fromkeys(chain.parts for chain in (*main, *further))
    # One worker is measured for all of them, and its lines and holders are not visible.
    is_unseen = leak.n > 1 if leak.kind == "workers" else leak.stack_basis == "unknown"
    is_approximate = is_estimate(leak) or is_unseen

    yield info.finding(
        severity=_severity(leak, confidence, limits),
        confidence=confidence,
        message=sentences(message(leak), more),
        fix=_suggest_fix(group, leak, fix),
        locations=lines,
        n=max(leak.n, 1),
        cost=Cost(
            bytes=total_bytes(leak),
            per_step_bytes=total_per_step_bytes(leak),
            basis="estimate" if is_approximate else "measured",
        ),
        holders=tuple(chains)[: max(_MAX_CHAINS, len(set(main)))],
        evidence=_collect_evidence(leak, n_steps),
        growth=total_growth(leak),
    )


def _suggest_fix(group: tuple[Leak, ...], leak: Leak, fix: LeakText) -> str:
    """Return what frees all that the holders of a group retain.

    Args:
        leak: The group as one leak.
        fix: The rule's fix for its first holder.
    """
    others = list_other_holders(group)
    if emptying_fix(leak) and cause_of(group[0]) != "retained-graph":
        return emptying_fix(leak)
    # Detached tensors would stay in the same object with those that have no graph.
    if others and len(set(map(cause_of, group))) > 1:
        if emptying_fix(leak):
            return emptying_fix(leak)
        names = listed([quoted(name) for name in bytes_by_holder(group)])
        return f"Clear {names} together after their values are used, which frees all of it."

    # No line of several that add to a holder is the one to rewrite.
    is_one_line = bool(others) or len(set(map(leak_location, group))) == 1
    text = fix(leak if is_one_line else replace(leak, code=""))
    is_of_holder = bool(others) and holder_name(leak) in text
    return sentences(text, f"Do the same for {others}." if is_of_holder else "")


def _count_more_lines(n_more: int) -> str:
    if n_more < 1:
        return ""
    verb = "allocates" if n_more == 1 else "allocate"
    return f"{counted(n_more, 'more line')} {verb} into the same holder."


def _confidence(leak: Leak, n_steps: int, limits: LeakThresholds) -> Confidence:
    """Return high confidence with enough steps, a line and a holder, else a lower one."""
    if leak.kind == "workers":
        return _DOUBT.get((n_steps < limits.sure_steps_count) + 1, "low")
    # The holder of native memory is a guess.
    has_holder = leak.kind != "native" and main_chain(leak) is not None
    has_holder = bool(leak.cycle) if leak.kind == "garbage" else has_holder
    doubts = [n_steps < limits.sure_steps_count, not leak.stack, not has_holder]
    return _DOUBT.get(sum(doubts), "low")


def _severity(leak: Leak, sure: Confidence, limits: LeakThresholds) -> Severity:
    grown = total_per_step_bytes(leak)
    chain = main_chain(leak)
    # Caches of plans and of samples grow no more once they are full.
    if leak.is_for_new_shapes or (chain is not None and chain.is_by_sample):
        return "note"
    # Of workers that were started while a step was recorded, a part may be profkit's own.
    if leak.kind == "workers" and chain is not None and not leak.made_share:
        return "note"
    if grown >= limits.error_step_bytes and sure == "high":
        return "error"
    return "warning" if grown >= limits.warning_step_bytes else "note"


def _collect_evidence(leak: Leak, n_steps: int) -> dict[str, EvidenceValue]:
    chain, graph = main_chain(leak), leak.graph
    facts: dict[str, EvidenceValue] = {
        "device": leak.device,
        "kind": leak.kind,
        "type": leak.type,
        "shape": "" if leak.shape is None else str(leak.shape),
        "first_step": leak.first_step,
        "last_step": leak.last_step,
        "n_evaluated_steps": n_steps,
        "code": leak.code,
        "stack": [f"{f.file}:{f.line} {f.function}" for f in leak.stack[:_MAX_FRAMES]],
        "holder": chain.kind if chain else "",
        "holder_name": chain.name if chain else "",
        "container": chain.container if chain else "",
        "container_len": chain.container_len if chain else None,
        "graph_nodes": graph.n_nodes if graph else None,
        "graph_saved_bytes": graph.saved_bytes if graph else None,
        "graph_root": graph.root if graph else "",
        "cycle": list(leak.cycle),
    }
    return {name: value for name, value in facts.items() if value not in ("", None, [])}
