"""What a link of a chain is called."""

from typing import NamedTuple

from profkit.model.live_memory import HolderKind


class HolderStep(NamedTuple):
    """How what a holder holds reads, after the holder's own text.

    Attributes:
        text: Such as ``.cache``, ``['k']``, or a variable's name at the start of a stretch.
        length: How many objects of the path it goes over.
        stretch: Whether a new stretch begins: a variable of a function, and no attribute.
        where: What closes that stretch, such as `` in the closure of hook at train.py:5``.
        restarts: Whether it has a name of its own, and all before it can go.
        kind: What kind of holder this link speaks of, or None.
    """

    text: str
    length: int
    stretch: bool = False
    where: str = ""
    restarts: bool = False
    kind: HolderKind | None = None
