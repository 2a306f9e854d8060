"""Has all ranks of a job record the same steps.

Each rank could decide by itself when steps are affordable; its collectives would then be compared
with those of other steps of the other ranks. Rank 0 decides, and writes the step at
which it begins to the store with which the program has created its process groups. Nobody waits: a
rank that does not find it records no steps yet, and one whose rank 0 does not take part decides by
itself. The store is queried for at most 2% of the time.

Source: ``torch/distributed/distributed_c10d.py`` (``_get_default_store``); ``Store.check`` does not
block.
"""

import math
import sys
import time
from typing import Any, Final

from profkit.capture.process import environment

_ASKING_SHARE: Final = 0.02
_NOTICE_S: Final = 0.01
"""How long before the first step rank 0 writes it at least: others ask every 5 ms, since that takes
0.1 ms, or once in each step."""
_MAX_NOTICE_S: Final = 1.0
_SLOWER: Final = 2.0
"""By how much more slowly others may ask than rank 0, on whose machine the store is. A rank that
learns the first step too late lacks the step with stacks before it."""
_SHORTEST_STEP_S: Final = 1e-4
_PATIENCE: Final = 10
"""Answers that rank 0 has not come, after which a rank decides by itself."""


class SharedSteps:
    """The steps that all ranks record.

    Args:
        name: The name of the trace, which tells several ones of a program apart.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_alone = False
        self._begin: int | None = None
        self._n_asked = 0
        self._next_s = 0.0
        self._last_s = 0.0
        self._notice_s = _NOTICE_S

    def begins(self, step: int, *, is_affordable: bool) -> int | None:
        """Return how many steps ago the recording began, after a step has ended.

        Args:
            step: How many steps have ended.
            is_affordable: Whether this rank would begin now.

        Returns:
            0 if it begins now, more if this rank learns it late; None if it has not begun.
        """
        now_s = time.monotonic()
        step_s, self._last_s = now_s - self._last_s, now_s
        rank, world_size = environment.ranks()

        if not self._is_alone and self._begin is None and rank is not None and world_size != 1:
            try:
                self._is_alone = not self._ask(rank, step, step_s, is_affordable=is_affordable)
            except Exception:  # noqa: BLE001  (the store is the program's, and may be gone)
                self._is_alone = True

        if self._begin is not None:
            return step - self._begin if step >= self._begin else None
        is_one = self._is_alone or rank is None or world_size == 1
        return 0 if is_one and is_affordable else None

    def _ask(self, rank: int, step: int, step_s: float, *, is_affordable: bool) -> bool:
        """Write or read the first step; False if rank 0 does not take part."""
        store, came, begins = _store(), f"profkit/{self._name}/0", f"profkit/{self._name}/steps"
        if store is None:
            return False

        if rank == 0:
            # The first write shows how long a query takes, and so how rarely others ask.
            if not self._n_asked:
                store.set(came, "1")
                others_s = _SLOWER * (time.monotonic() - self._last_s) / _ASKING_SHARE
                self._notice_s = min(max(_NOTICE_S, others_s), _MAX_NOTICE_S)
            self._n_asked += 1
            if is_affordable:
                self._begin = step + math.ceil(self._notice_s / max(step_s, _SHORTEST_STEP_S))
                store.set(begins, str(self._begin))

        elif self._last_s >= self._next_s:
            self._n_asked += 1
            if store.check([begins]):
                self._begin = int(store.get(begins))
            elif self._n_asked >= _PATIENCE and not store.check([came]):
                return False
            asking_s = time.monotonic() - self._last_s
            self._next_s = self._last_s + asking_s / _ASKING_SHARE
        return True


def _store() -> Any:  # noqa: ANN401  (a torch.distributed.Store)
    """Return the store of the default process group, or None without one."""
    if not environment.is_distributed():
        return None
    c10d: Any = sys.modules["torch.distributed"].distributed_c10d
    return c10d._get_default_store()  # noqa: SLF001  (torch has no other)
