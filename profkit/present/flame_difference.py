"""Flame graphs of two recordings as one, with the weights before and after."""

from collections import defaultdict
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.model.events import NO_ROW, Int64s
from profkit.model.flame import Flame, FlameSite
from profkit.model.location import base_name
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
    """Compare the flame graphs that both recordings have."""
    earlier = {flame.name: flame for flame in flames(before, COMPARED)}
    differences = []
    for flame in flames(after, COMPARED):
        if flame.name in earlier:
            has_steps = flame.unit == "ns" and bool(len(before.steps)) and bool(len(after.steps))
            n_steps = (len(before.steps), len(after.steps)) if has_steps else (1, 1)
            pair = (earlier[flame.name], flame)
            differences.append(_join_flames(pair, n_steps, is_per_step=has_steps))
    return tuple(differences)


def _join_flames(
    both: tuple[Flame, Flame], n_steps: tuple[int, int], *, is_per_step: bool
) -> FlameDifference:
    """Join the nodes of both graphs; equal paths are one node."""
    sites: dict[FlameSite, int] = {}
    numbers: dict[tuple[int, object], int] = {}
    parent, site = list[int](), list[int]()
    # Self weight, total and number of the first recording, then of the second one.
    weights: tuple[dict[int, list[int]], ...] = (
        defaultdict(lambda: [0, 0, 0]),
        defaultdict(lambda: [0, 0, 0]),
    )
    for flame, side_weights in zip(both, weights, strict=True):
        keys = _site_keys(flame)
        # Parents precede their children, so that the joined node of a parent is known.
        joined_node: list[int] = []
        columns = (flame.parent, flame.site, flame.own, flame.total, flame.n)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for flame_parent, flame_site, *values in rows:
            above = NO_ROW if flame_parent == NO_ROW else joined_node[flame_parent]
            node = numbers.setdefault((above, keys[flame_site]), len(numbers))
            if node == len(parent):
                parent.append(above)
                site.append(sites.setdefault(flame.sites[flame_site], len(sites)))
            joined_node.append(node)
            for place, value in enumerate(values):
                side_weights[node][place] += value

    n = len(parent)
    (_, total_before, _), (self_weight, total, count) = (
        np.array([side_weights[node] for node in range(n)], dtype=np.int64).reshape(n, 3).T
        for side_weights in weights
    )
    n_steps_before, n_steps_after = n_steps
    return FlameDifference(
        Flame(
            name=both[1].name,
            unit=both[1].unit,
            of=both[1].of,
            sites=tuple(sites),
            site=np.array(site, dtype=np.int32),
            parent=np.array(parent, dtype=np.int32),
            n=count,
            own=self_weight // n_steps_after,
            total=total // n_steps_after,
        ),
        total_before // n_steps_before,
        is_per_step,
    )


def _site_keys(flame: Flame) -> list[object]:
    """Return what makes sites of two recordings the same: lines and thread numbers change.

    The thread with most time is compared with the thread with most time of the other recording.
    """
    # The folders of a file differ between machines.
    keys: list[object] = [
        (site.kind, site.name, base_name(site.frame.file))
        if site.frame is not None
        else (site.kind, site.name)
        for site in flame.sites
    ]
    roots = np.flatnonzero(flame.parent == NO_ROW)
    by_weight = roots[np.argsort(-flame.total[roots], kind="stable")]
    for place, root in enumerate(by_weight.tolist()):
        if flame.sites[flame.site[root]].kind in {"thread", "device"}:
            keys[flame.site[root]] = place
    return keys
