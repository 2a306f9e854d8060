"""What grew over a run, put together from all looks and the closer ones."""

import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.host_growth import HostGrowth
from profkit.capture.memory.monitor.leak_inspector import Group, Inspection
from profkit.capture.memory.monitor.live_tensors import Entry, LiveTensors, TensorKind
from profkit.capture.memory.monitor.loader_workers import WorkerGrowth
from profkit.capture.memory.monitor.series import (
    LEAST_NODES_PER_STEP,
    LEAST_PER_STEP,
    Series,
    Sort,
    growth_of,
    made_anew,
)
from profkit.capture.source.user_code import Place, frames_of
from profkit.index.trend import Trend, median_slope
from profkit.model.live_memory import Chain, Leak

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
        host: Host memory that no tensor owns and that grows, or None.
        workers: The loader's workers, if their memory grows, or None.
    """

    series: Series
    census: LiveTensors
    births: AllocationSampler
    sights: Mapping[Group, Inspection]
    deepest: tuple[TensorKind, Inspection] | None = None
    host: HostGrowth | None = None
    workers: WorkerGrowth | None = None


def classify(evidence: Evidence) -> tuple[Leak, ...]:
    """What grows for good, the most bytes a step first.

    Args:
        evidence: All that the run has shown.
    """
    nodes = growth_of(evidence.series.nodes(), LEAST_NODES_PER_STEP)
    seen = list(_tensors(evidence, nodes))
    within = [growth for growth, sight in seen if sight.is_in_graph]
    found = [growth for growth, sight in seen if not sight.is_in_graph]
    behind = [place for place, growth in enumerate(found) if growth.graph is not None]
    if not behind and (within or nodes is not None):
        behind = [len(found)]
        found += _one_graph(evidence, nodes, within)
    if behind and len(found) > behind[0]:
        found[behind[0]] = _with_what_hangs_behind(found[behind[0]], within, nodes)
    merged = _merged(found)
    if evidence.host is not None:
        merged.append(_host(evidence.host))
    if evidence.workers is not None:
        merged.append(_workers(evidence.workers))
    merged.sort(key=lambda growth: -growth.per_step_bytes)
    return tuple(merged[:_MOST_GROWTHS])


def _with_what_hangs_behind(growth: Leak, within: list[Leak], nodes: Trend | None) -> Leak:
    """A growth with what its graph keeps.

    What a step's nodes keep is what all nodes keep, shared out among them, and at least what the
    tensors grow by that are seen in the graph.
    """
    if growth.graph is None:
        return growth
    nodes_per_step = 0.0 if nodes is None else nodes.per_step
    kept = growth.graph.saved_bytes * nodes_per_step / max(growth.graph.n_nodes, 1)
    kept = max(kept, sum(one.per_step_bytes for one in within))
    return replace(
        growth,
        per_step_bytes=growth.per_step_bytes + round(kept),
        bytes=growth.bytes + growth.graph.saved_bytes,
        nodes_per_step=nodes_per_step,
    )


def _host(host: HostGrowth) -> Leak:
    stack = frames_of((host.place,) if host.place else ())
    return Leak(
        kind="host",
        device="host",
        per_step_bytes=round(host.per_step_bytes),
        bytes=host.bytes,
        n=host.n,
        first_step=host.first_step,
        last_step=host.last_step,
        type=host.type,
        stack=stack,
        stack_basis="seen" if stack else "unknown",
        code=linecache.getline(stack[0].file, stack[0].line).strip() if stack else "",
        chains=host.chains,
    )


def _workers(workers: WorkerGrowth) -> Leak:
    n_steps = workers.last_step - workers.first_step
    return Leak(
        kind="workers",
        device="workers",
        per_step_bytes=round(workers.per_step_bytes),
        bytes=round(workers.per_step_bytes * n_steps),
        n=workers.n,
        first_step=workers.first_step,
        last_step=workers.last_step,
        type="",
        copied_share=workers.copied_share,
        made_share=workers.made_share,
    )


def _tensors(evidence: Evidence, nodes: Trend | None) -> Iterator[tuple[Leak, Inspection]]:
    """Tensors of which there are more and more, or which become larger and larger."""
    series = evidence.series
    for kind in sorted(series.kinds()):
        aged = series.aged(kind, lambda amount: amount.aged_bytes)
        trend = growth_of(aged, LEAST_PER_STEP)
        if trend is None and kind.has_graph and nodes is not None:
            held = series.aged(kind, lambda amount: amount.aged_n)
            trend = growth_of(held, _LEAST_HELD_PER_STEP)
            if trend is not None:
                trend = replace(trend, per_step=max(median_slope(*aged), 0.0))
        if trend is not None:
            first, last = series.seen[0].step, series.seen[-1].step
            trend = replace(trend, first_step=max(trend.first_step, first), last_step=last)
            yield from _by_line(evidence, kind, trend)
    for sort, trend in made_anew(series).items():
        yield from _one_that_grows(evidence, sort, trend)


def _by_line(
    evidence: Evidence, kind: TensorKind, trend: Trend
) -> Iterator[tuple[Leak, Inspection]]:
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
        sight = _sight_of(evidence, kind, place)
        growth = Leak(
            kind="garbage" if sight.cycle else "tensors",
            device=kind.device,
            per_step_bytes=round(trend.per_step * share),
            bytes=round(n_bytes * share),
            n=max(round(n * share), 1),
            first_step=trend.first_step,
            last_step=trend.last_step,
        )
        yield _with_sight(growth, sight, place), sight


def _sight_of(evidence: Evidence, kind: TensorKind, place: Place | None) -> Inspection:
    """What was seen of a kind's tensors that a line made.

    Where that line was not looked at, the others of the kind tell at least whether nobody holds
    them but a graph or a cycle: these are then no growth of their own, but a part of that one.
    """
    known = evidence.sights.get((kind, place)) or evidence.sights.get((kind, None))
    if known is not None:
        return known
    of_kind = [sight for (one, _), sight in evidence.sights.items() if one == kind]
    if of_kind and (
        all(sight.is_in_graph for sight in of_kind) or len({sight.cycle for sight in of_kind}) == 1
    ):
        newest = max(of_kind, key=lambda sight: sight.step)
        return newest if newest.is_in_graph or newest.cycle else Inspection(0)
    return Inspection(0)


def _shares(
    births: AllocationSampler, stayed: list[tuple[int, Entry]]
) -> dict[Place | None, float]:
    """Which share of what stayed each line made, judged by the steps that were sampled."""
    by_place: dict[Place | None, int] = {}
    for address, entry in stayed:
        stack = births.stack_of(address) if entry.born in births.steps else ()
        if stack:
            by_place[stack[0]] = by_place.get(stack[0], 0) + max(entry.bytes, 1)
    total = sum(by_place.values())
    return {place: n / total for place, n in by_place.items()} if total else {None: 1.0}


def _one_that_grows(
    evidence: Evidence, sort: Sort, trend: Trend
) -> Iterator[tuple[Leak, Inspection]]:
    """A tensor that is made anew in every step, larger each time."""
    entries = [e for _, e in evidence.census.entries() if (e.kind.device, e.kind.dtype) == sort]
    if not entries:
        return
    largest = max(entries, key=lambda entry: entry.bytes)
    seen = [sight for (one, _), sight in evidence.sights.items() if (one.device, one.dtype) == sort]
    sight = max(seen, key=lambda one: (bool(one.stack), one.step), default=Inspection(0))
    growth = _with_sight(
        Leak(
            kind="garbage" if sight.cycle else "tensors",
            device=sort[0],
            per_step_bytes=round(trend.per_step),
            bytes=largest.bytes,
            n=1,
            first_step=trend.first_step,
            last_step=trend.last_step,
        ),
        sight,
        sight.stack[0] if sight.stack else None,
    )
    yield growth, sight


def _one_graph(evidence: Evidence, nodes: Trend | None, within: list[Leak]) -> Iterator[Leak]:
    """A graph that becomes deeper and deeper behind one tensor."""
    if evidence.deepest is None:
        yield from within
        return
    kind, sight = evidence.deepest
    growth = _with_sight(
        Leak(
            kind="graph",
            device=kind.device,
            per_step_bytes=0,
            bytes=0,
            n=1,
            first_step=within[0].first_step if nodes is None else nodes.first_step,
            last_step=within[0].last_step if nodes is None else nodes.last_step,
        ),
        sight,
        sight.stack[0] if sight.stack else None,
    )
    yield growth if growth.stack else _with_line_within(growth, within)


def _with_line_within(growth: Leak, within: list[Leak]) -> Leak:
    """A graph with the line that makes most of what it keeps: one of its nodes is made there."""
    lined = [one for one in within if one.stack]
    if not lined:
        return growth
    most = max(lined, key=lambda one: one.per_step_bytes)
    return replace(growth, stack=most.stack, stack_basis="node", code=most.code)


def _with_sight(growth: Leak, sight: Inspection, place: Place | None) -> Leak:
    """A growth with what the closer look at it has seen."""
    stack = frames_of(sight.stack) if sight.stack else frames_of((place,) if place else ())
    return replace(
        growth,
        type=sight.type or growth.type,
        stack=stack,
        stack_basis="seen" if stack else "unknown",
        code=linecache.getline(stack[0].file, stack[0].line).strip() if stack else "",
        chains=sight.chains,
        graph=sight.graph,
        cycle=sight.cycle,
        shape=sight.shape,
    )


def _merged(found: list[Leak]) -> list[Leak]:
    """Growths of one line as one, and those of no known line by the one who holds them."""
    merged: dict[object, Leak] = {}
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
            graph=growth.graph if growth.nodes_per_step else known.graph or growth.graph,
            nodes_per_step=known.nodes_per_step + growth.nodes_per_step,
        )
        if growth.kind == "garbage":
            merged[key] = _in_one_cycle(merged[key], growth)
    return list(merged.values())


def _in_one_cycle(growth: Leak, more: Leak) -> Leak:
    """Several tensors that one cycle keeps: with a line that is known, and a shape if it is one."""
    if not growth.stack and more.stack:
        growth = replace(growth, stack=more.stack, stack_basis=more.stack_basis, code=more.code)
    return growth if growth.shape == more.shape else replace(growth, shape="")


def _key(growth: Leak) -> object:
    if growth.kind == "garbage":
        return growth.kind, growth.device, growth.cycle
    if growth.stack:
        return growth.kind, growth.device, growth.stack[0]
    if growth.chains:
        return growth.kind, growth.device, growth.chains[0].parts[0].partition("[")[0]
    return growth.kind, growth.device, growth.type, growth.shape


def _united(some: tuple[Chain, ...], more: tuple[Chain, ...]) -> tuple[Chain, ...]:
    unique = {chain.parts: chain for chain in (*some, *more)}
    return tuple(unique.values())[:_MOST_CHAINS]
