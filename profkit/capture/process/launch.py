"""How this process was launched: its rank, as a launcher set it; and whether a process runs.

Nothing heavy is imported here: a program without torch pays for it too.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

_MAX_WORLD: Final = 1 << 20


def launched_rank() -> tuple[int, int] | None:
    """Return this process's rank and the number of ranks, as its launcher set them, or None.

    Source: torchrun sets ``RANK`` and ``WORLD_SIZE`` (``torch.distributed.run``, "Environment
    Variables").
    """
    with contextlib.suppress(KeyError, ValueError):
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if 0 <= rank < world_size <= _MAX_WORLD:
            return rank, world_size
    return None


def is_alive(pid: int) -> bool:
    """Return whether a process runs: one whose parent has not noticed its end does not."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True

    # A process that has ended keeps its id until its parent waits for it.
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] not in "ZX"
    return True
