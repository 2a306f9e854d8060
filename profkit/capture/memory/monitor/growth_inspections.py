"""What is known of growing memory: which tensors, where they come from, and who holds them."""

from dataclasses import replace
from typing import Final, NamedTuple

from profkit.capture.memory.monitor import leak_classifier
from profkit.capture.memory.monitor.instruments import Instruments
from profkit.capture.memory.monitor.leak_inspector import Inspection, LeakInspector, SiteGroup
from profkit.capture.memory.monitor.live_tensors import TensorKind
from profkit.capture.memory.monitor.series import (
    DeviceDtype,
    find_reallocated,
    growing_kinds,
    growth_interval,
    suspected_kinds,
)
from profkit.capture.source.user_code import Place
from profkit.index.trend import MIN_POINTS, MIN_STEPS, is_rising
from profkit.model.growth import growth
from profkit.model.live_memory import Leak

_CHECK_INTERVAL: Final = 8
"""Samples between evaluations of all samples instead of the latest few, which find occasional
growth and reallocations."""


class Classified(NamedTuple):
    """The leaks, and the number of steps over which growth was evaluated."""

    leaks: tuple[Leak, ...] = ()
    n_steps: int = 0


class GrowthInspections:
    """Inspects what the samples show to grow, and remembers what was found.

    Args:
        instruments: What is measured with.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._inspections: dict[SiteGroup, Inspection] = {}
        self._deepest: tuple[TensorKind, Inspection] | None = None
        self._bytes_at: dict[TensorKind, dict[Place, int]] = {}
        self._suspected: set[TensorKind] = set()
        self._growing: set[TensorKind] = set()
        self._reallocated: set[DeviceDtype] = set()
        self._sampled_for: set[TensorKind] = set()

    @property
    def wants_shorter(self) -> bool:
        """Tell whether tensors become larger, so that shorter ones that they extend are wanted."""
        return bool(self._reallocated)

    def evaluate(self) -> bool:
        """Find what grows in the samples, and return whether anything does."""
        series, clock = self._instruments.series, self._instruments.clock
        is_check_due = len(series.samples) % _CHECK_INTERVAL == 0
        if is_check_due and clock.affords("classify"):
            with clock.spending("classify"):
                self._growing = growing_kinds(series)
                self._reallocated = set(find_reallocated(series, self._growing))

        with clock.spending("evaluate"):
            self._suspected = suspected_kinds(series) | self._growing
            return bool(self._suspected or self._reallocated or self._graph_rises())

    def sample_sites(self) -> int:
        """Note that sites are sampled for what grows now.

        Returns:
            Most steps between two increases of it.
        """
        self._sampled_for = self._suspected
        series = self._instruments.series
        return max((growth_interval(series, kind) for kind in self._suspected), default=0)

    def lacks_sites(self) -> bool:
        """Return whether sites are missing of what grows."""
        return self._lacks_sites_of(self._suspected)

    def lacks_sampled_sites(self) -> bool:
        """Return whether a kind that sites are sampled for has no aged storage with a known one."""
        tensors, sites = self._instruments.live_tensors, self._instruments.sites
        sited = {
            storage.kind
            for address, storage in tensors.storages()
            if storage.is_aged and storage.first_step in sites.steps and sites.stack_of(address)
        }
        extended = {
            (storage.kind.device, storage.kind.dtype)
            for address, storage in tensors.storages()
            if sites.is_extension(address)
        }
        return not (self._sampled_for <= sited and self._reallocated <= extended)

    def inspect(self, step: int) -> tuple[bool, bool]:
        """Inspect what grows, and what sites were sampled for.

        Returns:
            Whether there is a holder for all of it, and whether sites are missing.
        """
        suspected = self._suspected | self._sampled_for
        self._sampled_for = set()
        return self._inspect(step, suspected)

    def inspect_at_end(self, step: int) -> None:
        """Inspect what was not inspected yet, while the program's modules still exist."""
        series = self._instruments.series
        inspected = {kind for kind, _ in self._inspections}
        growing = growing_kinds(series)
        suspected = (suspected_kinds(series) | growing) - inspected
        self._reallocated = set(find_reallocated(series, growing)) - {
            (kind.device, kind.dtype)
            for (kind, _), inspection in self._inspections.items()
            if inspection.n_enlarged
        }
        unknown_graph = self._graph_rises() and self._deepest is None
        if suspected or self._reallocated or unknown_graph:
            self._inspect(step, suspected)

    def classify(self) -> Classified:
        """Return the leaks so far; none while there are too few steps."""
        instruments = self._instruments
        series = instruments.series
        steps = [sample.step for sample in series.samples]
        if len(steps) < MIN_POINTS or steps[-1] - steps[0] < MIN_STEPS:
            return Classified()

        heap = series.unexplained_heap(instruments.host.block_bytes)
        host = instruments.find_host_leak(is_final=True) or instruments.host.find_full_cache(heap)
        if host is not None:
            host = replace(host, growth=growth(*heap))

        evidence = leak_classifier.Evidence(
            series,
            instruments.live_tensors,
            instruments.sites,
            self._inspections,
            self._bytes_at,
            self._deepest,
            host,
            instruments.sampler.workers.find_leak(),
        )
        leaks = leak_classifier.classify(evidence)
        if not leaks:
            mapped = instruments.find_mapped_leak()
            leaks = () if mapped is None else (mapped,)
        return Classified(leaks, steps[-1] - steps[0])

    def _inspect(self, step: int, suspected: set[TensorKind]) -> tuple[bool, bool]:
        """Inspect some kinds, what is reallocated, and deep graphs, as :meth:`inspect` does."""
        instruments = self._instruments
        # The tensor whose graph grows may be one of these, such as a sum that began as 0. An
        # inspection scans all objects anyway, and much more slowly.
        instruments.find_earlier(step)

        with (
            instruments.clock.spending("inspection"),
            instruments.sampler.excluding_own(),
            instruments.lines.paused(),
        ):
            inspector = LeakInspector(
                instruments.live_tensors, instruments.sites, step, instruments.first_step
            )

            if suspected or self._reallocated:
                newest = inspector.inspect_groups(
                    suspected, self._reallocated, self._groups_outside_graphs()
                )
                for group, inspection in newest.items():
                    before = self._inspections.get(group)
                    self._inspections[group] = _with_earlier(inspection, before)

            if self._has_deep_graph():
                newest_deepest = inspector.inspect_deepest(self._groups_outside_graphs())
                previous = None if self._deepest is None else self._deepest[1]
                if newest_deepest is not None:
                    self._deepest = newest_deepest[0], _with_earlier(newest_deepest[1], previous)

        # A group without holder and cycle may have one at a later inspection.
        inspections = self._inspections.values()
        all_held = all(inspection.chains or inspection.cycle for inspection in inspections)
        is_complete = bool(self._inspections or self._deepest) and all_held
        lacks_sites = self._lacks_sites_of(suspected)
        self._note_sites()
        return is_complete, lacks_sites

    def _lacks_sites_of(self, suspected: set[TensorKind]) -> bool:
        """Return whether the sites of some kinds, or of what else grows, are unknown."""
        sited = {kind for kind, site in self._inspections if site is not None}
        sited_dtypes = {
            (kind.device, kind.dtype)
            for (kind, site), inspection in self._inspections.items()
            if site is not None and inspection.n_enlarged
        }
        graph_known = self._deepest is not None and bool(self._deepest[1].stack)
        return (
            bool(suspected - sited)
            or bool(self._reallocated - sited_dtypes)
            or (self._has_deep_graph() and not graph_known)
        )

    def _note_sites(self) -> None:
        """Note where the storages of sampled steps that have aged came from.

        They may be freed later while others of their kind come: in a queue that is read too slowly.
        """
        sites = self._instruments.sites
        for address, storage in self._instruments.live_tensors.storages():
            stack = sites.stack_of(address) if storage.is_aged else ()
            if stack and storage.first_step in sites.steps:
                bytes_at_line = self._bytes_at.setdefault(storage.kind, {})
                bytes_at_line[stack[0]] = bytes_at_line.get(stack[0], 0) + max(storage.bytes, 1)

    def _groups_outside_graphs(self) -> set[SiteGroup]:
        """Return the groups that something else than a graph keeps alive."""
        return {
            group for group, inspection in self._inspections.items() if not inspection.is_in_graph
        }

    def _graph_rises(self) -> bool:
        return is_rising(self._instruments.series.latest_nodes())

    def _has_deep_graph(self) -> bool:
        inspections = self._inspections.values()
        return self._graph_rises() or any(inspection.is_in_graph for inspection in inspections)


def _with_earlier(newest: Inspection, before: Inspection | None) -> Inspection:
    """Return the newest inspection, with the site and holders that an earlier one has found.

    Later the tensors of sampled steps may be gone, while others have come.
    """
    if before is None or (newest.is_hidden and not before.is_in_graph):
        return before or newest
    held = newest if newest.chains or newest.cycle else before
    stack, closed_at = newest.stack or before.stack, newest.closed_at or before.closed_at
    return replace(newest, stack=stack, chains=held.chains, limit=held.limit, closed_at=closed_at)
