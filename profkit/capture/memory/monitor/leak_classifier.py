"""Classifies what leaked over a run, from all samples and inspections."""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

import numpy as np

from profkit.capture.memory.monitor.allocation_sites import AllocationSampler, with_site
from profkit.capture.memory.monitor.leak_inspector import Inspection, SiteGroup
from profkit.capture.memory.monitor.live_tensors import LiveStorage, LiveTensors, TensorKind
from profkit.capture.memory.monitor.monitor_states import MIN_SAMPLED_STEPS
from profkit.capture.memory.monitor.series import (
    BYTES_PER_NODE,
    DeviceDtype,
    Series,
    accumulation,
    find_reallocated,
    graph_growth,
    growing_kinds,
    growth_of,
)
from profkit.capture.source.user_code import Place
from profkit.dataclass import dataclass
from profkit.index.trend import Floats, Trend, median_slope
from profkit.model.events import Int64s
from profkit.model.growth import Growth, growth, together
from profkit.model.leak_bytes import total_per_step_bytes
from profkit.model.live_memory import Chain, Graph, Leak, limit_together

_MIN_WITH_GRAPH_PER_STEP: Final = 0.1
"""Least growth, in tensors per step, of tensors that keep a graph: one in ten steps, each with all
nodes behind it."""
_MIN_WITH_GRAPH: Final = 20
"""Less growth per step is reported too if it has reached this many tensors."""
_MIN_LIMITED_BYTES: Final = 1 << 30
"""A container with a limit, as a deque with ``maxlen``, is meant to fill, and takes less than this
unless the limit is mistaken: a replay buffer of a million pictures."""
_GRAPH: Final = ".grad_fn"
_MIN_HIDDEN: Final = 1.25
"""Growth of the heap, as a multiple of what was counted, from which a part of it was not seen. Less
is nodes and objects."""
_MIN_OF_GROWTH: Final = 0.9
"""Share of the growth that some sites must allocate to be all of it."""
_MIN_REST: Final = 0.07
_MAX_REST: Final = 0.22
"""Shares of the heap's growth, uncounted, between which it is taken to be of the same leak: less is
not measured, more may be something else, such as temporaries that grow with what is kept."""
_MAX_CHAINS: Final = 3
_MAX_LEAKS: Final = 20
"""Leaks that are reported, the most bytes per step first."""


@dataclass(frozen=True)
class Evidence:
    """Everything that a run has shown.

    Attributes:
        inspections: The latest inspection of each group.
        bytes_at: Bytes of storages that have aged after sampled steps, by kind and site.
        deepest: The latest inspection of the tensor with the deepest graph.
        host: Growth of host memory that no tensor owns, or None.
        workers: Growth of the DataLoader's workers, or None.
    """

    series: Series
    live_tensors: LiveTensors
    sites: AllocationSampler
    inspections: Mapping[SiteGroup, Inspection]
    bytes_at: Mapping[TensorKind, Mapping[Place, int]] = field(default_factory=dict)
    deepest: tuple[TensorKind, Inspection] | None = None
    host: Leak | None = None
    workers: Leak | None = None


def classify(evidence: Evidence) -> tuple[Leak, ...]:
    """Return the leaks of a run, the most bytes per step first."""
    nodes = graph_growth(evidence.series)
    tensors = list(_find_tensor_leaks(evidence, nodes))
    in_graph = [leak for leak, inspection in tensors if inspection.is_in_graph]
    leaks = [leak for leak, inspection in tensors if not inspection.is_in_graph]

    # What the graphs save is added to the tensors that hold them, else to the deepest one.
    shares = _share_graphs(leaks)
    if not shares and (in_graph or nodes is not None):
        shares = {len(leaks): 1.0}
        leaks += _build_graph_leak(evidence, nodes, in_graph)
    leaks = [
        _with_saved_bytes(evidence.series, leak, in_graph, nodes, shares[place])
        if place in shares
        else leak
        for place, leak in enumerate(leaks)
    ]

    merged, host = _with_hidden_bytes(evidence.series, _merge(leaks), evidence.host)
    if host is None and evidence.workers is None:
        merged = _with_rest_of_heap(evidence.series, merged)
    merged += [leak for leak in (host, evidence.workers) if leak is not None]

    merged.sort(key=lambda leak: -leak.per_step_bytes)
    if sum(leak.limit_bytes or 0 for leak in merged) < _MIN_LIMITED_BYTES:
        merged = [leak for leak in merged if leak.limit_bytes is None]
    return tuple(merged[:_MAX_LEAKS])


def _with_hidden_bytes(
    series: Series, leaks: list[Leak], host: Leak | None
) -> tuple[list[Leak], Leak | None]:
    """Return leaks with what an autograd reference cycle holds that Python does not see.

    No Python object refers to its tensors and graphs, so that many of them were never counted. If
    nothing else leaks, they are what the heap grows by, and the growth of native memory too.
    """
    if len(leaks) != 1 or leaks[0].kind != "garbage" or leaks[0].device != "cpu":
        return leaks, host
    if not any(name.endswith(_GRAPH) for name in leaks[0].cycle):
        return leaks, host
    if host is not None and (host.kind != "native" or host.chains or host.is_for_new_shapes):
        return leaks, host

    leak = leaks[0]
    heap = growth_of(series.heap(), leak.per_step_bytes)
    per_step = leak.per_step_bytes + (0 if host is None else host.per_step_bytes)
    if heap is not None:
        # The nodes are added to every leak where it is reported.
        per_step = round(heap.per_step - BYTES_PER_NODE * leak.nodes_per_step)
    if per_step < _MIN_HIDDEN * leak.per_step_bytes:
        return leaks, host

    grown = per_step * (leak.last_step - leak.first_step)
    leak = replace(leak, per_step_bytes=per_step, bytes=max(leak.bytes, grown))
    return [leak], None


def _with_rest_of_heap(series: Series, leaks: list[Leak]) -> list[Leak]:
    """Return the leaks of one holder with what the heap grows by beyond what was counted.

    Small tensors, views, and the Python objects around tensors are counted by estimates or not at
    all, whereas C's allocator knows their bytes. Where the rest is large it may be something else.
    """
    is_of_tensors = all(leak.kind in {"tensors", "graph"} for leak in leaks)
    is_alone = len({leak.chains[0].parts[:2] if leak.chains else () for leak in leaks}) == 1
    is_on_heap = all(leak.device == "cpu" and leak.limit_bytes is None for leak in leaks)
    if not (is_alone and is_of_tensors and is_on_heap):
        return leaks

    # Like the message, so that what is reported is the growth of the heap.
    counted = sum(map(total_per_step_bytes, leaks))
    heap = growth_of(series.heap(), counted)
    rest = 0.0 if heap is None else heap.per_step - counted
    if heap is None or not _MIN_REST * heap.per_step <= rest <= _MAX_REST * heap.per_step:
        return leaks

    largest = max(leaks, key=total_per_step_bytes)
    grown = round(rest * (largest.last_step - largest.first_step))
    per_step_bytes = largest.per_step_bytes + round(rest)
    whole = replace(largest, per_step_bytes=per_step_bytes, bytes=largest.bytes + grown)
    return [whole if leak is largest else leak for leak in leaks]


def _share_graphs(leaks: list[Leak]) -> dict[int, float]:
    """Return the share of all graph nodes that belong to each leak with a graph, by its place.

    The nodes behind one tensor times the tensors of each step tell that. Leaks that have a graph
    in common are one, of which the first has all nodes.
    """
    weights: dict[int, float] = {}
    numbers: set[int] = set()
    for place, leak in enumerate(leaks):
        if leak.graph is None or leak.graph.number in numbers:
            continue
        numbers |= {leak.graph.number} - {0}
        n_steps = max(leak.last_step - leak.first_step, 1)
        n_behind = leak.graph.n_nodes / max(leak.graph.n_tensors, 1)
        weights[place] = n_behind * max(leak.n, 1) / n_steps

    total = sum(weights.values())
    return {place: weight / total for place, weight in weights.items() if total}


def _with_saved_bytes(
    series: Series, leak: Leak, in_graph: list[Leak], nodes: Trend | None, share: float
) -> Leak:
    """Return a leak including what its graph saves.

    The nodes of a step save the average of all nodes, and at least the growth of those tensors that
    were seen in the graph.

    Args:
        share: The share of all nodes that are of this leak.
    """
    if leak.graph is None:
        return leak

    if nodes is not None:
        nodes = replace(nodes, per_step=nodes.per_step * share)
    nodes_per_step = 0.0 if nodes is None else nodes.per_step
    graph = leak.graph if nodes is None else _enlarge_graph(leak.graph, nodes)
    saved = graph.saved_bytes * nodes_per_step / max(graph.n_nodes, 1)
    # A part of the nodes may save much: tensors that were seen there grow at least so.
    saved = max(saved, share * sum(saved_leak.per_step_bytes for saved_leak in in_graph))
    return replace(
        leak,
        per_step_bytes=leak.per_step_bytes + round(saved),
        bytes=leak.bytes + graph.saved_bytes,
        graph=graph,
        nodes_per_step=nodes_per_step,
        growth=_add_saved(
            series,
            graph,
            leak.growth,
            together(saved_leak.growth for saved_leak in in_graph),
            share,
        ),
    )


def _add_saved(
    series: Series,
    graph: Graph,
    of_tensors: Growth | None,
    in_graph: Growth | None,
    share: float,
) -> Growth | None:
    """Add to the growth of tensors what their graphs save, between walks on a straight line.

    Without tensors that grow, the nodes of all graphs and what these save; each saves the mean.

    Args:
        in_graph: The growth of those tensors that were seen in the graph.
        share: The share of all nodes that are of this graph.
    """
    steps, nodes = series.nodes()
    nodes = share * nodes
    saved = nodes * (graph.saved_bytes / max(graph.n_nodes, 1))
    if in_graph is not None:
        least = share * np.interp(steps, in_graph.steps, in_graph.bytes)
        saved = np.maximum(saved, least)
    if of_tensors is None:
        return growth(steps, saved, nodes)
    if not len(steps):
        return of_tensors
    more = np.interp(of_tensors.steps, steps, saved)
    return replace(of_tensors, bytes=tuple(map(round, more + np.array(of_tensors.bytes))))


def _enlarge_graph(graph: Graph, nodes: Trend) -> Graph:
    """Return a graph as it is at the end: the inspection that walked it may be long ago."""
    n_nodes = round(nodes.per_step * (nodes.last_step - nodes.first_step))
    if n_nodes <= graph.n_nodes:
        return graph
    saved_bytes = round(graph.saved_bytes * n_nodes / max(graph.n_nodes, 1))
    return replace(graph, n_nodes=n_nodes, saved_bytes=saved_bytes)


def _find_tensor_leaks(
    evidence: Evidence, nodes: Trend | None
) -> Iterator[tuple[Leak, Inspection]]:
    """Find tensors that become more and more, or larger and larger."""
    series = evidence.series
    accumulating = set()
    for kind in sorted(series.kinds()):
        trend = accumulation(series, kind)
        if trend is not None:
            accumulating.add(kind)
        elif kind.has_graph and nodes is not None:
            trend = growth_of(series.aged_n(kind), _MIN_WITH_GRAPH_PER_STEP, _MIN_WITH_GRAPH)
            if trend is not None:
                per_step = max(median_slope(*series.aged_bytes(kind)), 0.0)
                trend = replace(trend, per_step=per_step)

        if trend is not None:
            first = series.samples[0].step
            trend = replace(trend, first_step=max(trend.first_step, first))
            yield from _split_by_site(evidence, kind, trend)

    for device_dtype, trend in find_reallocated(series, accumulating).items():
        yield from _find_enlarged(evidence, device_dtype, trend)


def _find_enlarged(
    evidence: Evidence, device_dtype: DeviceDtype, trend: Trend
) -> Iterator[tuple[Leak, Inspection]]:
    """Find tensors that are longer in each step, each site with its share of the growth."""
    latest: dict[Place | None, Inspection] = {}
    inspections = sorted(evidence.inspections.items(), key=lambda item: item[1].step)
    for (kind, site), inspection in inspections:
        if inspection.n_enlarged and (kind.device, kind.dtype) == device_dtype:
            latest[site] = inspection
    if any(latest):
        latest.pop(None, None)

    total = sum(newest.n_enlarged * newest.storage_bytes for newest in latest.values())
    steps, values = evidence.series.bytes_of(device_dtype, growing_kinds(evidence.series))
    for site, inspection in latest.items():
        n = inspection.n_enlarged
        share = n * inspection.storage_bytes / max(total, 1)
        grown = round(trend.per_step * share * (trend.last_step - trend.first_step))
        of_site = replace(trend, per_step=trend.per_step * share)
        amount = max(grown, n * inspection.storage_bytes), n
        leak = _build_tensor_leak(device_dtype[0], of_site, amount, inspection, site)
        yield replace(leak, growth=growth(steps, values * share)), inspection


def _split_by_site(
    evidence: Evidence, kind: TensorKind, trend: Trend
) -> Iterator[tuple[Leak, Inspection]]:
    """Split the growth of one kind of tensors among the sites that allocated what stayed alive."""
    stayed = [
        (address, storage)
        for address, storage in evidence.live_tensors.storages()
        if storage.kind == kind and storage.is_aged and storage.first_step > trend.first_step
    ]
    if not stayed:
        return

    steps, aged_bytes = evidence.series.aged_bytes(kind)
    aged_n = evidence.series.aged_n(kind)[1]

    # What only the last sample has seen is not aged yet, but is in the series.
    # Beyond the limit of what is counted, they grow on as fast as until there.
    extent = evidence.series.extent_after(trend.first_step)
    counted_bytes = _growth_since(steps, aged_bytes, trend)
    n_counted = _growth_since(steps, aged_n, trend)
    n_bytes = max(sum(storage.bytes for _, storage in stayed), round(extent * counted_bytes))
    n = max(len(stayed), round(extent * n_counted))
    if extent > 1:
        trend = replace(trend, last_step=evidence.series.samples[-1].step)

    for site, share in _shares(evidence, kind, stayed).items():
        inspection = _find_inspection(evidence, kind, site)
        of_site = replace(trend, per_step=trend.per_step * share)
        amount = round(n_bytes * share), max(round(n * share), 1)
        leak = _build_tensor_leak(kind.device, of_site, amount, inspection, site)
        grown = growth(steps, aged_bytes * share, aged_n * share)
        yield replace(leak, growth=grown), inspection


def _growth_since(steps: Int64s, values: Floats, trend: Trend) -> int:
    """Return what has been added since a trend began."""
    return round(values[-1] - float(np.interp(trend.first_step, steps, values)))


def _build_tensor_leak(
    device: str,
    trend: Trend,
    amount: tuple[int, int],
    inspection: Inspection,
    site: Place | None = None,
) -> Leak:
    """Build a leak of some tensors.

    Args:
        amount: Their bytes, and how many they are.
    """
    leak = Leak(
        kind="garbage" if inspection.cycle else "tensors",
        device=device,
        per_step_bytes=round(trend.per_step),
        bytes=amount[0],
        n=amount[1],
        first_step=trend.first_step,
        last_step=trend.last_step,
    )
    return _with_inspection(leak, inspection, site)


def _find_inspection(evidence: Evidence, kind: TensorKind, site: Place | None) -> Inspection:
    """Find the inspection of a kind's tensors that were allocated at a site.

    If that site was not inspected, the other groups of the kind may still show that only a graph or
    a cycle keeps the tensors alive; they are then part of that leak and not one of their own.
    """
    of_site = evidence.inspections.get((kind, site))
    without_site = evidence.inspections.get((kind, None))
    if of_site is None or (
        without_site is not None and without_site.chains and not (of_site.chains or of_site.cycle)
    ):
        # Of a queue the sampled tensors may be gone when an inspection finds the holder of others.
        of_site = without_site
    if of_site is not None:
        return of_site

    of_kind = [inspection for group, inspection in evidence.inspections.items() if group[0] == kind]
    if of_kind and (
        all(inspection.is_in_graph for inspection in of_kind)
        or len({inspection.cycle for inspection in of_kind}) == 1
    ):
        newest = max(of_kind, key=lambda inspection: inspection.step)
        return newest if newest.is_in_graph or newest.cycle else Inspection(0)
    return Inspection(0)


def _shares(
    evidence: Evidence, kind: TensorKind, stayed: list[tuple[int, LiveStorage]]
) -> dict[Place | None, float]:
    """Return the share of the live bytes allocated at each site, by the sampled steps.

    If nothing of those steps is alive any more, the share of what has aged after them.
    """
    sites = evidence.sites
    sited: dict[Place, list[LiveStorage]] = {}
    for address, storage in stayed:
        stack = sites.stack_of(address) if storage.first_step in sites.steps else ()
        if stack:
            sited.setdefault(stack[0], []).append(storage)

    single = _find_single(sited, [storage.first_step for _, storage in stayed])
    by_site = {
        site: sum(max(storage.bytes, 1) for storage in storages)
        for site, storages in sited.items()
        if site not in single
    }
    by_site = by_site or dict(evidence.bytes_at.get(kind, {}))
    total = sum(by_site.values())
    return {site: n / total for site, n in by_site.items()} if total else {None: 1.0}


def _find_single(sited: Mapping[Place, list[LiveStorage]], first_steps: list[int]) -> set[Place]:
    """Find sites with one storage that others leave nothing to, as they explain all growth.

    It was allocated once for something that stays, as the buckets of ``DistributedDataParallel``.

    Args:
        sited: The storages of the sampled steps by allocation site.
        first_steps: The step of each storage that has stayed.
    """
    single = {site for site, storages in sited.items() if len(storages) == 1}
    others = [storage for site in sited.keys() - single for storage in sited[site]]
    if not others:
        return set()

    n_per_step = len(first_steps) / (max(first_steps) - min(first_steps) + 1)
    n_sampled = len({storage.first_step for storage in others})
    is_explained = len(others) >= _MIN_OF_GROWTH * n_per_step * n_sampled
    return single if n_sampled >= MIN_SAMPLED_STEPS and is_explained else set()


def _build_graph_leak(
    evidence: Evidence, nodes: Trend | None, in_graph: list[Leak]
) -> Iterator[Leak]:
    """Build the leak of a graph that becomes deeper and deeper behind one tensor."""
    if evidence.deepest is None:
        yield from in_graph
        return

    kind, inspection = evidence.deepest
    leak = Leak(
        kind="graph",
        device=kind.device,
        per_step_bytes=0,
        bytes=0,
        n=1,
        first_step=in_graph[0].first_step if nodes is None else nodes.first_step,
        last_step=in_graph[0].last_step if nodes is None else nodes.last_step,
    )
    leak = _with_inspection(leak, inspection)
    leak = replace(leak, chains=tuple(map(_of_one_attribute, leak.chains)))

    sited = [saved_leak for saved_leak in in_graph if saved_leak.stack]
    if not leak.stack and sited:
        # The site that allocates most of what the graph saves also creates one of its nodes.
        largest = max(sited, key=lambda saved_leak: saved_leak.per_step_bytes)
        leak = replace(leak, stack=largest.stack, stack_basis="node", code=largest.code)
    yield leak


def _of_one_attribute(chain: Chain) -> Chain:
    """Return the chain to one object, whose attribute is what to change, and no container."""
    parts = [part for part in chain.parts if part != chain.scope]
    name = "".join(parts)
    if not chain.container or not parts[-1].startswith(".") or "→" in name:
        return chain
    name = name.removeprefix("__main__.")
    return replace(chain, name=name, container="", container_len=None, container_limit=None)


def _with_inspection(leak: Leak, inspection: Inspection, site: Place | None = None) -> Leak:
    """Return a leak with what an inspection has found about it."""
    leak = replace(
        leak,
        type=inspection.type or leak.type,
        chains=inspection.chains,
        graph=inspection.graph,
        cycle=inspection.cycle,
        shape=inspection.shape,
        storage_bytes=inspection.storage_bytes or None,
        is_enlarged=bool(inspection.n_enlarged),
    )
    leak = replace(leak, limit_bytes=_limit_bytes(leak, inspection))
    closed_at = inspection.closed_at if inspection.cycle else ()
    return with_site(leak, closed_at or inspection.stack or ((site,) if site else ()))


def _limit_bytes(leak: Leak, inspection: Inspection) -> int | None:
    """Return the bytes of the container that holds a leak, once it is full; None without limit.

    Its entries since it was empty tell when that is. If it was not empty at first, its limit tells
    the least. A limit is no answer to graphs, which nobody stores on purpose, nor to entries that
    become larger.
    """
    limit = inspection.limit
    if limit is None or leak.graph is not None or leak.is_enlarged:
        return None
    n_limit, n_entries = limit.container_limit or 0, limit.container_len or 1
    tensor_bytes = (leak.shape.n_bytes or 0) if leak.shape else 0
    by_growth = leak.per_step_bytes * inspection.step * n_limit / n_entries
    return max(tensor_bytes * n_limit, round(by_growth))


def _merge(leaks: list[Leak]) -> list[Leak]:
    """Merge leaks with the same allocation site, or without one with the same holder."""
    merged: dict[object, Leak] = {}
    for leak in sorted(leaks, key=lambda leak: -leak.per_step_bytes):
        key = _merge_key(leak)
        larger = merged.get(key)
        if larger is None:
            merged[key] = leak
            continue

        chains = {chain.parts: chain for chain in (*larger.chains, *leak.chains)}
        merged[key] = replace(
            larger,
            per_step_bytes=larger.per_step_bytes + leak.per_step_bytes,
            bytes=larger.bytes + leak.bytes,
            n=larger.n + leak.n,
            first_step=min(larger.first_step, leak.first_step),
            chains=tuple(chains.values())[:_MAX_CHAINS],
            shape=larger.shape if larger.shape == leak.shape else None,
            graph=leak.graph if leak.nodes_per_step else larger.graph or leak.graph,
            growth=together((larger.growth, leak.growth)),
            nodes_per_step=larger.nodes_per_step + leak.nodes_per_step,
            limit_bytes=limit_together((larger, leak)),
        )

        if leak.kind == "garbage":
            merged[key] = _with_site_of(merged[key], leak)
    return list(merged.values())


def _with_site_of(leak: Leak, other: Leak) -> Leak:
    """Return a leak with the allocation site of another tensor of the same cycle."""
    if leak.stack or not other.stack:
        return leak
    return replace(leak, stack=other.stack, stack_basis=other.stack_basis, code=other.code)


def _merge_key(leak: Leak) -> object:
    """Return what leaks have in common that are one."""
    if leak.kind == "garbage":
        return leak.kind, leak.device, leak.cycle
    if leak.stack:
        return leak.kind, leak.device, leak.stack[0]
    if leak.chains:
        return leak.kind, leak.device, leak.chains[0].parts[0].partition("[")[0]
    return leak.kind, leak.device, leak.type, leak.shape
