"""Events that are written as two, a begin and an end, made one."""

import numpy as np

from profkit.model.events import MISSING, Category
from profkit.readers.kineto.batch import SPARSE, Columns


def pair_edges(edges: Columns) -> tuple[Columns, int]:
    """Pair every end with the last begin before it on its lane that has none yet.

    Args:
        edges: Begin and end events, as :class:`~profkit.readers.kineto.batch.Batch` has them.

    Source: Trace Event Format, "Duration Events": begins and ends of a thread nest, and of the
    arguments of both the end's win where the two have the same key.

    Returns:
        The columns of complete events, :data:`~profkit.readers.kineto.batch.SPARSE` among them with
        an entry for every event, and how many edges found no partner.
    """
    starts, lanes, begins = edges["ts_ns"], edges["lane"], edges["begins"]
    timed = starts != MISSING
    order = np.lexsort((edges["position"], starts, lanes))
    begun: list[int] = []
    pairs: list[tuple[int, int]] = []
    lane = None
    for i in order[timed[order]].tolist():
        if lanes[i] != lane:
            lane = lanes[i]
            begun.clear()
        if begins[i]:
            begun.append(i)
        elif begun:
            pairs.append((begun.pop(), i))
    pairs.sort()
    first = np.array([begin for begin, _ in pairs], dtype=np.intp)
    last = np.array([end for _, end in pairs], dtype=np.intp)
    columns = {key: edges[key][first] for key in edges if key != "begins"}
    columns["dur_ns"] = starts[last] - starts[first]
    # Whether a wait on an XPU was the host's is an argument, and may be the end's.
    told_late = (columns["category"] == Category.DEVICE_SYNC) & (
        edges["category"][last] == Category.DRIVER
    )
    columns["category"] = np.where(told_late, Category.DRIVER, columns["category"])
    for key in SPARSE:
        later = edges[key][last]
        columns[key] = np.where(later == MISSING, columns[key], later)
    return columns, len(starts) - 2 * len(pairs)
