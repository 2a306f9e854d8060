"""Builds synthetic recordings, for profkit's tests and for authors of rules and renderers.

``TraceBuilder`` builds traces, ``SnapshotBuilder`` snapshots, ``LiveBuilder`` memory records.

Example:
    >>> from profkit.testing import TraceBuilder
    >>> b = TraceBuilder(stacks=True)
    >>> for _ in range(3):
    ...     with b.step(), b.frame("train.py", 12, "train_step"):
    ...         b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    ...         b.item()
    >>> path = b.write("step.pt.trace.json.gz")  # doctest: +SKIP
"""

from profkit.testing.live_builder import LiveBuilder
from profkit.testing.snapshot_builder import SnapshotBuilder
from profkit.testing.trace_builder import TraceBuilder
from profkit.testing.trace_format import Format

__all__ = ["Format", "LiveBuilder", "SnapshotBuilder", "TraceBuilder"]
