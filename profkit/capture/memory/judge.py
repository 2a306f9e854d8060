"""What grew over a run, put together from all looks and the closer ones."""

import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from profkit.capture.memory.births import Births, Place, frames_of
from profkit.capture.memory.census import Census, Entry, Kind
from profkit.capture.memory.closer import Group, Sight
from profkit.capture.memory.series import (
    LEAST_NODES_PER_STEP,
    LEAST_PER_STEP,
    Series,
    growth_of,
)
from profkit.index.trend import Trend, median_slope
from profkit.model.live import Chain, Growth

_LEAST_HELD_PER_STEP: Final = 0.1
"""Tensors with a graph that stay, a step: one in ten steps, each with all that hangs behind it."""
_MOST_CHAINS: Final = 3
_MOST_GROWTHS: Final = 20


@dataclass(frozen=True)
class Evidence:
    """All that a run has shown.

    Attributes:
        series: The looks.
        census: What is alive.
        births: Which lines are known.
        sights: The last closer look at each group.
        deepest: The last closer look at the tensor with the deepest graph.
    """

    series: Series
    census: Census
    births: Births
    sights: Mapping[Group, Sight]
    deepest: tuple[Kind, Sight] | None = None


def judge(evidence: Evidence) -> tuple[Growth, ...]:
    """What grows for good, the most bytes a step first.

    Args:
        evidence: All that the run has shown.
    """
    nodes = growth_of(evidence.series.nodes(), LEAST_NODES_PER_STEP)
    found = list(_tensors(evidence, nodes))
    if nodes is not None and not any(growth.graph is not None for growth in found):
        found += _one_graph(evidence, nodes)
    merged = _with_nodes(_merged(found), nodes)
    merged.sort(key=lambda growth: -growth.per_step_bytes)
    return tuple(merged[:_MOST_GROWTHS])


def _tensors(evidence: Evidence, nodes: Trend | None) -> Iterator[Growth]:
    """Tensors of which there are more and more, or which become larger and larger."""
    series = evidence.series
    for kind in sorted(series.kinds()):
        aged = series.of(kind, lambda amount: amount.aged_bytes)
        trend = growth_of(aged, LEAST_PER_STEP)
        if trend is None and kind.has_graph and nodes is not None:
            held = series.of(kind, lambda amount: amount.aged_n)
            trend = growth_of(held, _LEAST_HELD_PER_STEP)
            if trend is not None:
                trend = replace(trend, per_step=max(median_slope(*aged), 0.0))
        if trend is not None:
            yield from _by_line(evidence, kind, trend)
            continue
        trend = growth_of(series.of(kind, lambda amount: amount.bytes), LEAST_PER_STEP)
        if trend is not None:
            yield from _one_that_grows(evidence, kind, trend)


def _by_line(evidence: Evidence, kind: Kind, trend: Trend) -> Iterator[Growth]:
    """What one kind of tensors grows by, shared out among the lines that make what stays."""
    stayed = [
        (address, entry)
        for address, entry in evidence.census.entries()
        if entry.kind == kind and entry.is_aged and entry.born > trend.first_step
    ]
    if not stayed:
        return
    n_bytes, n = sum(entry.bytes for _, entry in stayed), len(stayed)
    for place, share in _shares(evidence.births, stayed).items():
        sight = evidence.sights.get((kind, place)) or evidence.sights.get((kind, None)) or Sight(0)
        growth = Growth(
            kind="garbage" if sight.cycle else "tensors",
            device=kind.device,
            per_step_bytes=round(trend.per_step * share),
            bytes=round(n_bytes * share),
            n=max(round(n * share), 1),
            first_step=trend.first_step,
            last_step=trend.last_step,
        )
        yield _with_sight(growth, sight, place, evidence)


def _shares(births: Births, stayed: list[tuple[int, Entry]]) -> dict[Place | None, float]:
    """Which share of what stayed each line made, judged by the steps that were sampled."""
    by_place: dict[Place | None, int] = {}
    for address, entry in stayed:
        stack = births.stack_of(address) if entry.born in births.steps else ()
        if stack:
            by_place[stack[0]] = by_place.get(stack[0], 0) + max(entry.bytes, 1)
    total = sum(by_place.values())
    return {place: n / total for place, n in by_place.items()} if total else {None: 1.0}


def _one_that_grows(evidence: Evidence, kind: Kind, trend: Trend) -> Iterator[Growth]:
    """A tensor that is made anew in every step, larger each time."""
    entries = [(a, e) for a, e in evidence.census.entries() if e.kind == kind]
    if not entries:
        return
    _, largest = max(entries, key=lambda one: one[1].bytes)
    sight = next((s for (k, _), s in evidence.sights.items() if k == kind), Sight(0))
    yield _with_sight(
        Growth(
            kind="tensors",
            device=kind.device,
            per_step_bytes=round(trend.per_step),
            bytes=largest.bytes,
            n=1,
            first_step=trend.first_step,
            last_step=trend.last_step,
        ),
        sight,
        sight.stack[0] if sight.stack else None,
        evidence,
    )


def _one_graph(evidence: Evidence, nodes: Trend) -> Iterator[Growth]:
    """A graph that becomes deeper and deeper behind one tensor."""
    if evidence.deepest is None:
        return
    kind, sight = evidence.deepest
    kept = growth_of(evidence.series.figures("graph_bytes"), 1.0)
    yield _with_sight(
        Growth(
            kind="graph",
            device=kind.device,
            per_step_bytes=0 if kept is None else round(kept.per_step),
            bytes=0 if sight.graph is None else sight.graph.saved_bytes,
            n=1,
            first_step=nodes.first_step,
            last_step=nodes.last_step,
        ),
        sight,
        sight.stack[0] if sight.stack else None,
        evidence,
    )


def _with_sight(growth: Growth, sight: Sight, place: Place | None, evidence: Evidence) -> Growth:
    """A growth with what the closer look at it has seen."""
    extra = 0
    if growth.kind == "tensors" and sight.graph is not None:
        kept = growth_of(evidence.series.figures("graph_bytes"), 1.0)
        extra = 0 if kept is None else round(kept.per_step)
    stack = frames_of(sight.stack) if sight.stack else frames_of((place,) if place else ())
    return replace(
        growth,
        per_step_bytes=growth.per_step_bytes + extra,
        bytes=growth.bytes + (sight.graph.saved_bytes if sight.graph and extra else 0),
        type=sight.type or growth.type,
        stack=stack,
        stack_is="seen" if stack else "unknown",
        code=linecache.getline(stack[0].file, stack[0].line).strip() if stack else "",
        chains=sight.chains,
        graph=sight.graph,
        cycle=sight.cycle,
        shape=sight.shape,
    )


def _with_nodes(found: list[Growth], nodes: Trend | None) -> list[Growth]:
    """Growths with the nodes that their graphs gain a step, shared out by how many they have."""
    total = sum(growth.graph.n_nodes for growth in found if growth.graph is not None)
    if nodes is None or not total:
        return found
    return [
        replace(each, nodes_per_step=nodes.per_step * each.graph.n_nodes / total)
        if each.graph is not None
        else each
        for each in found
    ]


def _merged(found: list[Growth]) -> list[Growth]:
    """Growths of one line as one, and those of no known line by the one who holds them."""
    merged: dict[object, Growth] = {}
    for growth in sorted(found, key=lambda one: -one.per_step_bytes):
        key = _key(growth)
        known = merged.get(key)
        if known is None:
            merged[key] = growth
            continue
        merged[key] = replace(
            known,
            per_step_bytes=known.per_step_bytes + growth.per_step_bytes,
            bytes=known.bytes + growth.bytes,
            n=known.n + growth.n,
            first_step=min(known.first_step, growth.first_step),
            chains=_united(known.chains, growth.chains),
            graph=known.graph or growth.graph,
        )
    return list(merged.values())


def _key(growth: Growth) -> object:
    if growth.stack:
        return growth.kind, growth.device, growth.stack[0]
    if growth.chains:
        return growth.kind, growth.device, growth.chains[0].parts[0].partition("[")[0]
    return growth.kind, growth.device, growth.type, growth.shape


def _united(some: tuple[Chain, ...], more: tuple[Chain, ...]) -> tuple[Chain, ...]:
    unique = {chain.parts: chain for chain in (*some, *more)}
    return tuple(unique.values())[:_MOST_CHAINS]
