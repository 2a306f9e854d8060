"""Process groups of ``torch.distributed``."""

import json

from profkit.dataclass import dataclass


@dataclass(frozen=True)
class ProcessGroup:
    """A process group. Two groups can have the same ranks, or the same name on different ranks.

    Attributes:
        name: As recorded; empty where it is not known.
        ranks: Its ranks in the job, or None where they are not known.
        size: The number of its ranks, or None.
        description: Its purpose, such as ``default_pg``; empty where it is not known.
    """

    name: str
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    description: str = ""


def ranks_of(written: object) -> tuple[int, ...] | None:
    """Read the ranks of a group as torch writes them; None if it left some out.

    Args:
        written: A list, a list as JSON, or that as a JSON string.
    """
    # After the 30th rank torch writes ``...``, which is not JSON.
    for _ in range(2):
        if isinstance(written, str):
            try:
                written = json.loads(written)
            except (ValueError, RecursionError):
                return None
    if not isinstance(written, list) or not written:
        return None
    if not all(isinstance(rank, int) and 0 <= rank < 1 << 31 for rank in written):
        return None
    return tuple(written)
