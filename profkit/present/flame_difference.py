"""Flame graphs of two recordings as one: what takes more or less than before."""

from collections import defaultdict
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.model.events import NO_ROW, Int64s
from profkit.model.flame import Flame, FlameSite
from profkit.present.flames import flames

COMPARED: Final = ("host-stack", "device-stack", "device-module", "memory-stack")


@dataclass(frozen=True)
class FlameDifference:
    """A flame graph of the second recording, with what its nodes were in the first one.

    Attributes:
        flame: The nodes of both recordings, with the weights of the second one, per step if
            ``is_per_step``.
        before: Weight of each node with its descendants in the first recording. Shape ``(k,)``.
        is_per_step: Whether both recordings have steps, and weights are time.
    """

    flame: Flame
    before: Int64s
    is_per_step: bool


def flame_differences(before: Context, after: Context) -> tuple[FlameDifference, ...]:
    """The flame graphs that both recordings have."""
    earlier = {flame.name: flame for flame in flames(before, COMPARED)}
    found = []
    for flame in flames(after, COMPARED):
        if flame.name in earlier:
            has_steps = flame.unit == "ns" and bool(len(before.steps)) and bool(len(after.steps))
            n_steps = (len(before.steps), len(after.steps)) if has_steps else (1, 1)
            found.append(_joined((earlier[flame.name], flame), n_steps, is_per_step=has_steps))
    return tuple(found)


def _joined(
    both: tuple[Flame, Flame], n_steps: tuple[int, int], *, is_per_step: bool
) -> FlameDifference:
    """The nodes of both graphs; equal paths are one node."""
    sites: dict[FlameSite, int] = {}
    numbers: dict[tuple[int, object], int] = {}
    parent, site = list[int](), list[int]()
    # Own, total and number of the first recording, then of the second one.
    weights: tuple[dict[int, list[int]], ...] = (
        defaultdict(lambda: [0, 0, 0]), defaultdict(lambda: [0, 0, 0]),
    )  # fmt: skip
    for flame, of_side in zip(both, weights, strict=True):
        keys = _keys(flame)
        node_of: list[int] = []
        columns = (flame.parent, flame.site, flame.own, flame.total, flame.n)
        for above, at, *values in zip(*(each.tolist() for each in columns), strict=True):
            over = NO_ROW if above == NO_ROW else node_of[above]
            node = numbers.setdefault((over, keys[at]), len(numbers))
            if node == len(parent):
                parent.append(over)
                site.append(sites.setdefault(flame.sites[at], len(sites)))
            node_of.append(node)
            for place, value in enumerate(values):
                of_side[node][place] += value
    n = len(parent)
    (_, was, _), (own, total, count) = (
        np.array([of_side[node] for node in range(n)], dtype=np.int64).reshape(n, 3).T
        for of_side in weights
    )
    old, new = n_steps
    return FlameDifference(
        Flame(
            name=both[1].name,
            unit=both[1].unit,
            of=both[1].of,
            sites=tuple(sites),
            site=np.array(site, dtype=np.int32),
            parent=np.array(parent, dtype=np.int32),
            n=count,
            own=own // new,
            total=total // new,
        ),
        was // old,
        is_per_step,
    )


def _keys(flame: Flame) -> list[object]:
    """What makes sites of two recordings the same: lines and numbers of threads change.

    The thread with most time is compared with the one with most time.
    """
    found: list[object] = [
        (each.kind, each.name, each.frame.file.replace("\\", "/").rsplit("/", 1)[-1])
        if each.frame is not None
        else (each.kind, each.name)
        for each in flame.sites
    ]
    roots = np.flatnonzero(flame.parent == NO_ROW)
    by_weight = roots[np.argsort(-flame.total[roots], kind="stable")]
    for place, root in enumerate(by_weight.tolist()):
        if flame.sites[flame.site[root]].kind in {"thread", "device"}:
            found[flame.site[root]] = place
    return found
