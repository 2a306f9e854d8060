"""Bytes of a leak: what was counted, and what its graph nodes and small tensors take besides."""

from typing import Final

from profkit.dataclass import replace
from profkit.model.growth import Growth
from profkit.model.live_memory import Graph, Leak

NODE_BYTES: Final = 768
"""Approximate size of a graph node. With torch 2.13 resident memory grew, after
backward, by 690 bytes a node of an attention layer, 810 of linear and 880 of convolutional ones."""
_TENSOR_BYTES: Final = 460
"""Host memory of a tensor beside its values: its Python object, its sizes, the record of its
storage. The C heap grew by 512 bytes for each tensor of 16 numbers with torch 2.13."""
_ADDED_SHARE: Final = 0.1
"""Share of a leak above which what is added to it counts."""


def graph_bytes(graph: Graph) -> int:
    """Return the bytes that a graph saved, with an approximate size of its nodes."""
    return graph.saved_bytes + NODE_BYTES * graph.n_nodes


def saved_per_step_bytes(leak: Leak) -> int:
    """Return the bytes per step that new graph nodes save, at the average of all nodes."""
    if leak.graph is None or not leak.graph.n_nodes:
        return 0
    return round(leak.graph.saved_bytes * leak.nodes_per_step / leak.graph.n_nodes)


def node_per_step_bytes(leak: Leak) -> int:
    """Return approximate bytes per step of new graph nodes, without what they save."""
    return round(NODE_BYTES * leak.nodes_per_step)


def _tensor_objects_bytes(leak: Leak) -> int:
    """Return approximate bytes of small tensors beside their values; 0 if the values are most."""
    if leak.kind != "tensors" or leak.device != "cpu" or leak.is_enlarged:
        return 0
    n_bytes = _TENSOR_BYTES * leak.n
    return n_bytes if n_bytes > _ADDED_SHARE * leak.bytes else 0


def _added_per_step_bytes(leak: Leak) -> int:
    """Return approximate bytes per step of nodes, and of small tensors beside their values."""
    n_steps = max(leak.last_step - leak.first_step, 1)
    return node_per_step_bytes(leak) + round(_tensor_objects_bytes(leak) / n_steps)


def total_per_step_bytes(leak: Leak) -> int:
    """Return the growth per step, with nodes, and with the objects of small tensors."""
    return leak.per_step_bytes + _added_per_step_bytes(leak)


def total_bytes(leak: Leak) -> int:
    """Return the bytes at the last sample, with the same inclusions."""
    nodes = NODE_BYTES * leak.graph.n_nodes if leak.graph else 0
    return leak.bytes + nodes + _tensor_objects_bytes(leak)


def total_growth(leak: Leak) -> Growth | None:
    """Return the measured growth with the same inclusions, in proportion to its objects.

    So a chart of it agrees with the growth per step that the finding states.
    """
    growth = leak.growth
    added_bytes = total_bytes(leak) - leak.bytes
    if growth is None or not growth.n or not leak.n or not added_bytes:
        return growth
    n_bytes = (
        own + round(added_bytes * n / leak.n) for own, n in zip(growth.bytes, growth.n, strict=True)
    )
    return replace(growth, bytes=tuple(n_bytes))


def is_estimate(leak: Leak) -> bool:
    """Return whether approximate sizes of nodes and objects make the growth an estimate."""
    return _added_per_step_bytes(leak) > _ADDED_SHARE * total_per_step_bytes(leak)
