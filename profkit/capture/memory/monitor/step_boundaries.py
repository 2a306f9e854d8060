"""Where a watched program's steps end, as far as its optimizers, loaders and modules tell.

An optimizer's step is a step; of several optimizers that of the first one. Without an optimizer
it is a turn of a DataLoader's loop, and without both a call of the first module. What the program
itself says comes before all of them.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import Final, Literal

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

Turn = Literal["module", "loader", "optimizer", "user"]
"""What ends a step, the surest last."""

_PATIENCE: Final[dict[Turn, int]] = {"module": 6, "loader": 3, "optimizer": 0, "user": 0}
"""How often it must have happened before it counts, since a surer one may come."""
_ORDER: Final[tuple[Turn, ...]] = ("module", "loader", "optimizer", "user")
_FOREIGN_STEPS: Final = 8
"""Steps of other optimizers in a row after which the first one is taken to be gone."""


class StepBoundaries:
    """Tells a watcher of a program's steps.

    Args:
        watch: Makes the watcher for steps of a kind, once that is known.

    Attributes:
        watcher: It, or None before the first step.
    """

    def __init__(self, watch: Callable[[Turn], LeakMonitor]) -> None:
        self.watcher: LeakMonitor | None = None
        self._watch = watch
        self._turn: Turn | None = None
        self._n_turns: dict[Turn, int] = dict.fromkeys(_ORDER, 0)
        self._leader: weakref.ref[object] | None = None
        self._module: weakref.ref[object] | None = None
        self._n_foreign = 0
        self._n_lost = 0

    @property
    def is_any_optimizer(self) -> bool:
        """Whether optimizers come and go, so that the step of any of them counts."""
        return self._n_lost > 1

    def optimizer_stepped(self, optimizer: object, *, recorded: bool) -> None:
        """An optimizer's step has ended.

        Args:
            recorded: Whether the step that ends was recorded, and must not be disturbed.
        """
        if self._leads(optimizer):
            self._ended("optimizer", recorded=recorded)

    def told(self) -> None:
        """The program itself says that a step has ended."""
        self._ended("user", recorded=False)

    def batch_asked(self, *, recorded: bool) -> None:
        """A loader is asked for its next batch."""
        self._ended("loader", recorded=recorded)

    def module_called(self, module: object, *, recorded: bool) -> None:
        """A module is called; the calls of the first one count."""
        if self._module is None:
            with contextlib.suppress(TypeError):
                self._module = weakref.ref(module)
        if self._module is not None and self._module() is module:
            self._ended("module", recorded=recorded)

    def _ended(self, turn: Turn, *, recorded: bool) -> None:
        if self._turn is not None and _ORDER.index(turn) < _ORDER.index(self._turn):
            return
        self._n_turns[turn] += 1
        if turn != self._turn:
            if self._n_turns[turn] <= _PATIENCE[turn]:
                return
            self._turn = turn
            if self.watcher is not None:
                self.watcher.drop()
            self.watcher = self._watch(turn)
        if self.watcher is not None:
            if recorded:
                self.watcher.skip()
            else:
                self.watcher.step()

    def _leads(self, optimizer: object) -> bool:
        """Whether it is the first optimizer, or the one that has taken its place."""
        if self._leader is None:
            self._follow(optimizer)
            return True
        if self.is_any_optimizer:
            return True
        if self._leader() is optimizer:
            self._n_foreign = 0
            return True
        self._n_foreign += 1
        if self._n_foreign < _FOREIGN_STEPS:
            return False
        self._n_lost += 1
        self._follow(optimizer)
        return True

    def _follow(self, optimizer: object) -> None:
        self._n_foreign = 0
        with contextlib.suppress(TypeError):
            self._leader = weakref.ref(optimizer)
