"""Recordings that fuzzing starts from."""

from typing import Final

from profkit.testing import TraceBuilder

FRAMES: Final = [{"filename": "train.py", "line": 3, "name": "step"}]
SNAPSHOT: Final = {
    "segments": [
        {
            "device": 0, "address": 4096, "total_size": 2048, "allocated_size": 512,
            "active_size": 512, "requested_size": 500, "stream": 0, "segment_type": "small",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
            "blocks": [
                {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated",
                 "frames": FRAMES},
                {"size": 1536, "state": "inactive", "history": [{"real_size": 9, "frames": []}]},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 4096, "size": 2048, "stream": 0, "time_us": 4},
            {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 5,
             "frames": FRAMES},
            {"action": "free_requested", "addr": 64, "size": 512, "stream": 0, "time_us": 5},
            {"action": "free_completed", "addr": 64, "size": 512, "stream": 0, "time_us": 5},
            {"action": "oom", "size": 1 << 40, "device_free": 7, "stream": 0, "time_us": 6},
        ]
    ],
    "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 4}],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": False,
        "max_split_size": -1, "garbage_collection_threshold": 0.5, "roundup_power2_divisions":
        {"1": 0, "2": 4},
    },
}  # fmt: skip
"""A snapshot with every kind of entry."""


def program() -> TraceBuilder:
    """Return a short program with events of most kinds."""
    b = TraceBuilder(memory=True, stacks=True)
    for number in range(2):
        with b.step(), b.frame("train.py", number, "f"):
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
            b.to_device(64, 2_000)
            b.alloc(64)
            b.synchronize()
    return b
