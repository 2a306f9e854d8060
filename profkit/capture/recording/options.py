"""What a capture records."""

import os
from typing import Final

from profkit.dataclass import dataclass
from profkit.errors import UsageError

IS_ON: Final = os.environ.get("PROFKIT", "1").strip().lower() not in {"0", "off", "false", "no"}
"""Whether anything is recorded: ``PROFKIT=0`` in the environment turns it off."""


@dataclass(frozen=True)
class Options:
    """What to record, and where to write it.

    Attributes:
        ops: Operators on the host.
        device: Kernels, copies, fills and runtime calls of CUDA, ROCm or XPU.
        stacks: Source lines. In a loop they come from one step that is recorded for them alone.
        shapes: Input shapes of the operators.
        memory: Allocations and frees.
        flops: Floating point operations, as torch estimates them.
        folder: The folder for traces, or None for ``$PROFKIT_DIR``, else ``traces``.
        quiet: Print warnings only.
    """

    ops: bool = True
    device: bool = True
    stacks: bool = True
    shapes: bool = True
    memory: bool = True
    flops: bool = False
    folder: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        if not (self.ops or self.device):
            raise UsageError(
                "A trace with neither operators nor device work would be empty.",
                "Leave ops or device on.",
            )


DEFAULTS: Final = Options()
