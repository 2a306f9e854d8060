"""Decides what ends the steps of a program: a pure transition function.

Of all that may end a step the most reliable is used: what the program itself reports, else its
optimizer, else the batches of a DataLoader, else calls of a module. The less reliable come earlier
in a program, so they wait for some events, in case a more reliable one follows.
"""

from enum import Enum, auto
from typing import Final, Literal

from profkit.dataclass import dataclass, replace

StepSource = Literal["module", "loader", "optimizer", "user"]
"""What ends a step, the most reliable last."""

ORDER: Final[tuple[StepSource, ...]] = ("module", "loader", "optimizer", "user")
MIN_EVENTS: Final[dict[StepSource, int]] = {"module": 6, "loader": 3, "optimizer": 0, "user": 0}
"""Events of a source before it is used, as a more reliable one may follow."""
MODULE_CALLS_BEFORE_STEP: Final = 1000
"""Calls of a module, before they are used, while an optimizer exists that has not stepped: a policy
or a cell is called many times in a step, and what its calls retain until then is no growth."""


class StepAction(Enum):
    """What the event of a source is."""

    IGNORE = auto()
    """No step: a more reliable source is used, or this one waits."""
    COUNT = auto()
    """The end of a step."""
    BEGIN = auto()
    """The end of the first step: what was counted before were no steps."""


@dataclass(frozen=True)
class SourceState:
    """The sources of a program's steps.

    Attributes:
        source: The one that is used; None before the first step.
        n_module: Calls of a module before they were used, or another source was.
        n_loader: Batches, in the same way.
    """

    source: StepSource | None = None
    n_module: int = 0
    n_loader: int = 0

    @property
    def n_ended_before(self) -> int:
        """Return how many steps ended before the first end of one that the source reported.

        A call of a module, and a batch, begins a step: the second one is the first end. Of the
        other sources no event was left out.
        """
        return 0 if self.source is None else max(0, _n_events(self, self.source) - 2)

    def is_less_reliable(self, source: StepSource) -> bool:
        """Tell whether a source is less reliable than the one that is used."""
        return self.source is not None and ORDER.index(source) < ORDER.index(self.source)


def next_action(
    state: SourceState,
    source: StepSource,
    *,
    awaits_optimizer: bool = False,
    begins_anew: bool = False,
) -> tuple[SourceState, StepAction]:
    """Return what the event of a source is, and the state after it.

    Args:
        awaits_optimizer: Whether the program has made an optimizer, which has not stepped.
        begins_anew: Whether the events of this source until now were parts of steps.
    """
    if source == state.source:
        return state, StepAction.BEGIN if begins_anew else StepAction.COUNT
    if state.is_less_reliable(source):
        return state, StepAction.IGNORE

    state = _with_event(state, source)
    n_events = _n_events(state, source)
    is_early = n_events <= MIN_EVENTS[source]
    may_train = awaits_optimizer and source == "module" and n_events <= MODULE_CALLS_BEFORE_STEP
    if is_early or may_train:
        return state, StepAction.IGNORE
    return replace(state, source=source), StepAction.BEGIN


def _with_event(state: SourceState, source: StepSource) -> SourceState:
    """Count an event of a source that is not used yet."""
    if source == "module":
        return replace(state, n_module=state.n_module + 1)
    if source == "loader":
        return replace(state, n_loader=state.n_loader + 1)
    return state


def _n_events(state: SourceState, source: StepSource) -> int:
    """Return the events of a source that is not used yet; of a reliable one, the first suffices."""
    return {"module": state.n_module, "loader": state.n_loader}.get(source, 1)
