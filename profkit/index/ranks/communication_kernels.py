"""Which kernels move data between devices instead of computing."""

import re
from typing import Final

import numpy as np

from profkit.index.runtime_calls import names_matching
from profkit.model.events import Category, EventTable, Mask

_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|oneccl|hccl|msccl|nvshmem|cross_device_reduce|multimem_"
    r"|one_shot_all_reduce|two_shot_all_reduce"
    r"|all_reduce_kernel|all_gather_kernel|reduce_scatter_kernel"
    r"|ep::internode|ep::intranode",
    re.IGNORECASE,
)
"""Names of communication kernels.

Source: NCCL, RCCL, oneCCL and HCCL name their kernels after themselves; ``multimem_*``,
``one_shot_*`` and ``two_shot_*`` are PyTorch's symmetric-memory kernels
(``torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu``); ``cross_device_reduce`` is vLLM's;
``ep::`` is DeepEP's.
"""


def communication(events: EventTable) -> Mask:
    """Rows of communication kernels: by name, or because a collective is written on them."""
    named = names_matching(events.names, _COMMUNICATION)
    mask = (events.category == Category.KERNEL) & named[events.name]
    with_collective = events.collective.rows
    kernels = with_collective[events.category[with_collective] == Category.KERNEL]
    mask = mask.copy()
    mask[kernels] = True
    return np.asarray(mask)
