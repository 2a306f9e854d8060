"""Watches a program's memory from step to step, within a budget, and says at the end what grew.

Most boundaries are passed with one comparison. At some of them the young objects are looked
through; only where growth is seen are lines sampled for a few steps, and holders looked for.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Final

from profkit.capture import environment, talk
from profkit.capture.memory import graphs, judge, looks
from profkit.capture.memory.births import Births
from profkit.capture.memory.budget import Budget, Clock
from profkit.capture.memory.census import Census, Kind, quiet_collector
from profkit.capture.memory.closer import CloserLook, Group, Sight
from profkit.capture.memory.series import Seen, Series, suspects
from profkit.index.trend import MIN_POINTS, MIN_STEPS, is_rising
from profkit.model.live import Growth, LiveMemory, Look

_LOOKS_APART: Final = 33
"""Looks lie apart by this part of the steps so far: each step first, a few hundred looks in all."""
_SAMPLED_STEPS: Final = (3, 6, 12)
"""Steps whose lines are sampled, the first time and again where those did not tell."""
_CLOSER_APART: Final = 5
"""Steps between closer looks, at least; then half as many again as there have been."""


def _always() -> bool:
    return True


class Watcher:
    """Watches one stretch of a program.

    Args:
        name: Its name.
        steps_are: What a step is, in a word.
        budget: What watching may cost.
        may_sample: Asked before lines are sampled, which would disturb a recording.

    Attributes:
        n_steps: Steps that have ended.
        is_busy: Whether it is at work itself.
    """

    def __init__(
        self,
        name: str,
        steps_are: str,
        budget: Budget | None = None,
        may_sample: Callable[[], bool] = _always,
    ) -> None:
        self.name = name
        self.steps_are = steps_are
        self.n_steps = 0
        self.is_busy = False
        self._pid = os.getpid()
        self._next = 1
        self._clock = Clock(budget or Budget())
        self._census = Census(self._clock.affords_collector, self._clock.went_through_young)
        self._births = Births()
        self._may_sample = may_sample
        self._series = Series()
        self._resident = looks.Resident()
        self._sights: dict[Group, Sight] = {}
        self._deepest: tuple[Kind, Sight] | None = None
        self._sample_until = 0
        self._n_samplings = 0
        self._closer_from = 0
        self._first = 0
        self._failed = False
        self._not_seen: list[str] = []

    def step(self) -> None:
        """A step has ended."""
        self.n_steps += 1
        if self.n_steps >= self._next:
            self._guarded(self._at_boundary)

    def skip(self) -> None:
        """A step has ended that is recorded, and must not be disturbed."""
        self.n_steps += 1
        if self._births.is_on:
            self._births.end()

    def finish(self) -> LiveMemory:
        """Say what was seen, and let go of everything."""
        if self._births.is_on:
            self._births.end()
        if not self.is_busy:
            self._guarded(self._last_look)
        live = self._told()
        self._guarded(self._let_go)
        return live

    def drop(self) -> None:
        """Let go of everything, and say nothing."""
        if self._births.is_on:
            self._births.end()
        self._guarded(self._let_go)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do something in the user's process; what goes wrong ends the watching alone."""
        if self._failed or self._pid != os.getpid():
            return
        self.is_busy = True
        try:
            work()
        except Exception as error:  # noqa: BLE001  (a bug of ours must not end the user's program)
            self._failed = True
            self._not_seen.append(f"Watching ended at step {self.n_steps}: {error}")
            talk.warn("profkit stopped watching memory.", error)
        finally:
            self.is_busy = False

    def _at_boundary(self) -> None:
        began_ns = time.perf_counter_ns()
        if not self._first:
            self._begin(began_ns)
            return
        sampled = self._births.is_on
        self._clock.step_ended(began_ns, self.n_steps, sampled=sampled)
        if sampled:
            self._births.end(self.n_steps)
        elif not self._clock.affords_look():
            self._next = self.n_steps + 1
            return
        full = self._census.n_missed > 0 and self._clock.affords_full()
        self._look(full=full)
        if sampled:
            self._births.forget(lambda address: self._census.entry(address) is not None)
        self._clock.looked(began_ns, full=full)
        if self.n_steps < self._sample_until:
            self._sample()
        else:
            self._think()
        self._clock.step_begins(self.n_steps)

    def _begin(self, began_ns: int) -> None:
        self._first = self.n_steps
        self._clock.begin(began_ns)
        self._census.begin()
        self._look(full=True)
        self._clock.looked_first(began_ns)
        self._clock.step_begins(self.n_steps)

    def _look(self, *, full: bool) -> None:
        amounts = self._census.look(self.n_steps, full=full)
        n_nodes, graph_bytes = self._graphs()
        allocated, reserved = looks.device_bytes()
        by_device: dict[str, int] = {}
        for kind, amount in amounts.items():
            by_device[kind.device] = by_device.get(kind.device, 0) + amount.bytes
        figures = Look(
            step=self.n_steps,
            ts_ns=self._clock.watched_ns(),
            host_rss_bytes=self._resident.read(),
            tensor_bytes=by_device,
            graph_bytes=graph_bytes,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
        )
        self._series.add(Seen(figures, amounts, n_nodes))
        self._next = self.n_steps + max(1, self.n_steps // _LOOKS_APART)

    def _graphs(self) -> tuple[int | None, int | None]:
        """Nodes of all graphs and what they keep beyond live tensors; None where it is too dear."""
        if not self._clock.affords_graphs():
            return None, None
        began_ns = time.perf_counter_ns()
        with quiet_collector(), graphs.past_user_code():
            roots = self._census.roots()
            nodes = [node for one in roots if (node := graphs.grad_fn_of(one)) is not None]
            counted = {address for address, _ in self._census.entries()}
            walk = graphs.Walk()
            n_bytes = sum(walk.bytes_kept_by(node, counted) for node in walk.nodes(nodes))
            n_nodes = walk.n_nodes
            del roots, nodes, walk
        self._clock.walked(began_ns)
        return n_nodes, n_bytes

    def _think(self) -> None:
        """Decide whether what was seen is worth a closer look, and lines before it."""
        suspected = suspects(self._series)
        if self._sample_until:
            self._sample_until = 0
            self._look_closer(suspected)
        elif (
            (suspected or self._graph_rises())
            and self.n_steps >= self._closer_from
            and self._clock.affords_closer()
        ):
            if self._wants_lines(suspected):
                self._sample_until = self.n_steps + _SAMPLED_STEPS[self._n_samplings]
                self._n_samplings += 1
                self._sample()
            else:
                self._look_closer(suspected)

    def _graph_rises(self) -> bool:
        return is_rising(self._series.nodes()[1])

    def _wants_lines(self, suspected: set[Kind]) -> bool:
        """Whether lines are still wanted, and can be had without the program noticing."""
        known = {kind for kind, place in self._sights if place is not None}
        deepest_known = self._deepest is not None and bool(self._deepest[1].stack)
        wanted = bool(suspected - known) or not (suspected or deepest_known)
        return (
            wanted
            and self._n_samplings < len(_SAMPLED_STEPS)
            and self._births.can_begin()
            and self._may_sample()
        )

    def _sample(self) -> None:
        """Sample the step that begins now."""
        if self._births.can_begin():
            self._births.begin()
            self._next = self.n_steps + 1

    def _look_closer(self, suspected: set[Kind]) -> None:
        began_ns = time.perf_counter_ns()
        closer = CloserLook(self._census, self._births, self.n_steps, self._first)
        if suspected:
            self._sights.update(closer.groups(suspected))
        if self._graph_rises():
            self._deepest = closer.deepest() or self._deepest
        self._closer_from = self.n_steps + max(_CLOSER_APART, self.n_steps // 2)
        self._clock.looked_closer(began_ns)

    def _last_look(self) -> None:
        """Look closer at what had no closer look yet, while the program's modules are there."""
        suspected = suspects(self._series) - {kind for kind, _ in self._sights}
        if suspected or (self._graph_rises() and self._deepest is None):
            self._look_closer(suspected)

    def _told(self) -> LiveMemory:
        evidence = judge.Evidence(
            self._series, self._census, self._births, self._sights, self._deepest
        )
        growths: tuple[Growth, ...] = ()
        steps = [one.figures.step for one in self._series.seen]
        is_judged = len(steps) >= MIN_POINTS and steps[-1] - steps[0] >= MIN_STEPS
        if is_judged:
            growths = judge.judge(evidence)
        torch = sys.modules.get("torch")
        return LiveMemory(
            name=self.name,
            steps_are=self.steps_are,
            n_steps=self.n_steps,
            watched_ns=self._clock.watched_ns(),
            looks=tuple(one.figures for one in self._series.seen),
            growths=growths,
            n_judged_steps=steps[-1] - steps[0] if is_judged else 0,
            not_seen=tuple(self._not_seen),
            cost=self._clock.cost(self._census.n_full),
            torch=None if torch is None else str(torch.__version__),
            devices=() if torch is None else tuple(environment.devices(torch)),
            argv=tuple(sys.argv),
        )

    def _let_go(self) -> None:
        self._births.forget(lambda _: False)
        self._census.end()
        self._resident.close()
