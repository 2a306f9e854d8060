"""What grows as a finding: how severe, how sure, what it costs, and what it rests on."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.growth_words import line_of, sentences
from profkit.engine.growths import all_bytes, is_about, principal, step_bytes, together
from profkit.engine.wording import counted, known
from profkit.model.finding import Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.live import Growth

_DOUBT: Final[dict[int, Confidence]] = {0: "high", 1: "medium"}
_MOST_FRAMES: Final = 20
_MOST_CHAINS: Final = 3
Words = Callable[[Growth], str]
"""Says something of what grows."""


class Limits(Protocol):
    """What the thresholds of every rule on growth have.

    Attributes:
        min_step_bytes: Growth in a step that is worth telling.
        warning_step_bytes: Growth from which it is a warning.
        error_step_bytes: Growth from which it is an error, if it is sure.
        sure_steps_count: Judged steps from which their number leaves no doubt.
    """

    @property
    def min_step_bytes(self) -> int:
        """Growth in a step that is worth telling."""

    @property
    def warning_step_bytes(self) -> int:
        """Growth from which it is a warning."""

    @property
    def error_step_bytes(self) -> int:
        """Growth from which it is an error, if it is sure."""

    @property
    def sure_steps_count(self) -> int:
        """Judged steps from which their number leaves no doubt."""


def growth_finding(
    info: RuleInfo,
    ctx: Context,
    group: tuple[Growth, ...],
    limits: Limits,
    *,
    message: Words,
    fix: Words,
) -> Iterator[Finding]:
    """A finding on what one holder keeps, or none where it grows too little to tell.

    Args:
        info: The rule's card.
        ctx: What was recorded; with watched memory.
        group: What grows, the most bytes a step first.
        limits: The rule's thresholds.
        message: Says what was found.
        fix: Says what to write instead.
    """
    growth = together(group)
    if step_bytes(growth) < limits.min_step_bytes:
        return
    n_steps = ctx.live.n_judged_steps if ctx.live is not None else 0
    sure = _confidence(growth, n_steps, limits)
    lines = known(*dict.fromkeys(map(line_of, group)))
    others = counted(len(lines) - 1, "more line")
    more = f"{others} make{'s' if len(lines) == 2 else ''} what is kept there."  # noqa: PLR2004
    chains = dict.fromkeys(chain.parts for each in group for chain in each.chains)
    is_estimate = is_about(growth) or growth.stack_is == "unknown"
    yield info.finding(
        severity=_severity(growth, sure, limits),
        confidence=sure,
        message=sentences(message(growth), more if len(lines) > 1 else ""),
        fix=fix(growth),
        locations=lines,
        n=max(growth.n, 1),
        cost=Cost(
            bytes=all_bytes(growth),
            per_step_bytes=step_bytes(growth),
            basis="estimate" if is_estimate else "measured",
        ),
        holders=tuple(chains)[:_MOST_CHAINS],
        evidence=_evidence(growth, n_steps),
    )


def _confidence(growth: Growth, n_steps: int, limits: Limits) -> Confidence:
    """Sure with steps enough, the line, and who holds it; each that is missing is a doubt."""
    is_held = bool(growth.cycle) if growth.kind == "garbage" else principal(growth) is not None
    doubts = [n_steps < limits.sure_steps_count, not growth.stack, not is_held]
    return _DOUBT.get(sum(doubts), "low")


def _severity(growth: Growth, sure: Confidence, limits: Limits) -> Severity:
    grown = step_bytes(growth)
    if grown >= limits.error_step_bytes and sure == "high":
        return "error"
    return "warning" if grown >= limits.warning_step_bytes else "note"


def _evidence(growth: Growth, n_steps: int) -> dict[str, EvidenceValue]:
    chain, graph = principal(growth), growth.graph
    facts: dict[str, EvidenceValue] = {
        "device": growth.device,
        "kind": growth.kind,
        "type": growth.type,
        "shape": growth.shape,
        "first_step": growth.first_step,
        "last_step": growth.last_step,
        "n_judged_steps": n_steps,
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
