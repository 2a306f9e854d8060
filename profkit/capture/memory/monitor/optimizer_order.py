"""Decides which of several optimizers ends the steps of a program: a pure transition function.

One step of a program is one iteration of its outermost loop that repeats. An optimizer that steps
within it several times, such as a critic or the inner optimizer of MAML, steps more often than the
outer one, so the outer one leads: the one that steps least often, and of several that step equally
often the first.

Nothing is known in advance, so the first optimizer leads until another proves to be the outer one.
That can only happen in the first :data:`SETTLING_STEPS` steps of a leading optimizer: the steps
that were counted by then belong within a step, and the count begins anew. Later, an optimizer that
steps rarely is one of an epoch, and no count is given up for it.
"""

from enum import Enum, auto
from typing import Final

from profkit.dataclass import dataclass, replace

SETTLING_STEPS: Final = 32
"""Steps of a leading optimizer after which no outer one is looked for any more."""
FOREIGN_STEPS: Final = 8
"""Steps of other optimizers after which the leading one has stopped, unless it is known to pause
for longer."""
MAX_REMEMBERED: Final = 1024
"""Optimizers that are remembered: a program may make a new one for each step, and keep it."""
_FOREIGN_FACTOR: Final = 2
"""An optimizer has stopped after this multiple of the most steps of others that it paused for."""
_MIN_INNER_STEPS: Final = 2
"""With one step of the leading optimizer for each of another one's, the two alternate."""
_MAX_RESTARTS: Final = 16
"""Optimizers that are freed, one after the other, after which a program is taken to make a new one
for each step: the count does not begin anew with the next one."""
_MAX_INNER_STEPS: Final = 16
"""A leader that has stepped more often when it is freed was none within a step: a program that
makes an optimizer for each epoch or fold goes on with its steps."""
_MAX_TAKEN: Final = 4
"""Times that a new optimizer may take the lead from one that steps no more, after which each step
of any optimizer counts: no program nests so many, and one that trains a model for each fold or
trial goes on like that for ever."""
_MIN_OUTLIVED: Final = 2
"""Leading optimizers that another one must have outlived to be the outer one in the long run."""
_MAX_GONE: Final = 1
"""Times that the leading optimizer may stop before each step of any optimizer counts."""


class OrderPhase(Enum):
    """What is known of the order in which a program's optimizers step."""

    EMPTY = auto()
    """No optimizer has stepped."""
    FINDING = auto()
    """One leads, but an outer one may take the lead."""
    SETTLED = auto()
    """One leads until it is freed or stops."""
    ANY = auto()
    """Optimizers come and go, or take turns for long: each step of any of them counts."""


class OptimizerStep(Enum):
    """What the step of an optimizer is in the program."""

    WITHIN = auto()
    """A part of a step."""
    ENDS = auto()
    """The end of a step."""
    ENDS_FIRST = auto()
    """The end of a step, and those counted before were parts of steps."""


@dataclass(frozen=True)
class SteppedOptimizer:
    """What is known of an optimizer that has stepped.

    Attributes:
        key: Identifies it; later optimizers have larger ones.
        n: Its steps.
        last: The number of its last step among those of all optimizers.
        led_at: Steps that had been counted by then.
        most_between: Most steps of others between two of its own.
        n_outlived: Leading optimizers that were freed, in whose time it stepped.
        n_taken: Optimizers before it that took the lead, one from the other, in their first step.
    """

    key: int
    n: int = 0
    last: int = 0
    led_at: int = 0
    most_between: int = 0
    n_outlived: int = 0
    n_taken: int = 0


@dataclass(frozen=True)
class OptimizerOrder:
    """What is known of all optimizers of a program.

    Attributes:
        leader: The one that leads; None before the first step, or if it was freed.
        followers: The others that still exist.
        n_events: Steps of all optimizers.
        n_led: Steps that were counted as the program's.
        n_discarded: Steps of those that were counted before the count began anew.
        reign_led: Steps that had been counted when the leader took the lead.
        reign_event: Steps of all optimizers by then.
        is_outer: Whether the leader is known to step less often than others.
        n_freed: Leaders that were freed and may have stepped within a step.
        n_gone: Leaders that have stopped.
        begins_anew: Whether the count begins anew with the leader's next step.
    """

    phase: OrderPhase = OrderPhase.EMPTY
    leader: SteppedOptimizer | None = None
    followers: tuple[SteppedOptimizer, ...] = ()
    n_events: int = 0
    n_led: int = 0
    n_discarded: int = 0
    reign_led: int = 0
    reign_event: int = 0
    is_outer: bool = False
    n_freed: int = 0
    n_gone: int = 0
    begins_anew: bool = False


def next_order(
    order: OptimizerOrder, key: int, freed: frozenset[int] = frozenset()
) -> tuple[OptimizerOrder, OptimizerStep]:
    """Return what is known once an optimizer has stepped, and what that step is.

    Args:
        key: The optimizer that has stepped.
        freed: Optimizers that were freed since the last step.
    """
    if freed:
        order = _without_freed(order, freed)
    order = replace(order, n_events=order.n_events + 1)

    if order.phase is OrderPhase.ANY:
        return _count_any_step(order, key)
    if order.leader is None:
        return _choose_leader(order, key)
    if order.leader.key == key:
        return _count_leader_step(order)
    return _judge_follower_step(order, order.leader, key)


def is_steady(order: OptimizerOrder) -> bool:
    """Return whether each further step of the leader in a row is one of the program's."""
    leader = order.leader
    is_led = leader is not None and leader.last == order.n_events
    return is_led and order.phase is OrderPhase.SETTLED and not order.begins_anew


def after_steps_of_leader(order: OptimizerOrder, n: int) -> OptimizerOrder:
    """Return what is known once the leader of a steady order has stepped ``n`` times in a row.

    It is what :func:`next_order` leads to in ``n`` calls.
    """
    leader = order.leader
    if leader is None or not n:
        return order
    n_events, n_led = order.n_events + n, order.n_led + n
    leader = replace(leader, n=leader.n + n, last=n_events, led_at=n_led)
    return replace(order, leader=leader, n_events=n_events, n_led=n_led)


def _without_freed(order: OptimizerOrder, freed: frozenset[int]) -> OptimizerOrder:
    """Forget the optimizers that were freed."""
    followers = tuple(follower for follower in order.followers if follower.key not in freed)
    if len(followers) < len(order.followers) and order.phase is not OrderPhase.ANY:
        # Others come and go while the leader stays: they are the inner ones.
        order = _as_outer(order)
    order = replace(order, followers=followers)

    leader = order.leader
    if leader is None or leader.key not in freed:
        return order
    outlived = tuple(
        replace(follower, n_outlived=follower.n_outlived + (follower.last > order.reign_event))
        for follower in order.followers
    )
    # After one that trained for itself, no count is given up for the next one.
    is_inner = leader.n <= _MAX_INNER_STEPS
    n_freed = order.n_freed + 1 if is_inner else _MAX_RESTARTS + 1
    return replace(order, leader=None, followers=outlived, n_freed=n_freed)


def _as_outer(order: OptimizerOrder) -> OptimizerOrder:
    """Note that the leader steps less often than others, of which some steps may be counted."""
    leader = order.leader
    if leader is None or order.is_outer:
        return order
    is_miscounted = order.n_led - order.n_discarded != leader.n
    begins_anew = order.phase is OrderPhase.FINDING and is_miscounted
    return replace(order, is_outer=True, begins_anew=begins_anew)


def _choose_leader(order: OptimizerOrder, key: int) -> tuple[OptimizerOrder, OptimizerStep]:
    """Give the lead to an optimizer that outlived the last leader, else to the one that steps."""
    is_finding = order.phase in {OrderPhase.EMPTY, OrderPhase.FINDING}
    least = 1 if is_finding else _MIN_OUTLIVED
    heirs = [follower for follower in order.followers if follower.n_outlived >= least]
    if heirs:
        heir = min(heirs, key=lambda follower: (follower.n, follower.key))
        order = _as_outer(_with_leader(order, heir))
        return _count_leader_step(order) if heir.key == key else _note_inner_step(order, key)

    # How long it pauses is known only if the steps until now are those of one iteration.
    optimizer = _optimizer(order, key)
    between = order.n_events - 1 - optimizer.last if is_finding else 0
    optimizer = replace(optimizer, most_between=max(optimizer.most_between, between))
    order = _with_leader(order, optimizer)
    phase = OrderPhase.FINDING if is_finding else order.phase
    begins_anew = is_finding and 0 < order.n_freed <= _MAX_RESTARTS
    return _count_leader_step(replace(order, phase=phase, begins_anew=begins_anew))


def _count_leader_step(order: OptimizerOrder) -> tuple[OptimizerOrder, OptimizerStep]:
    """Count a step of the leading optimizer."""
    leader = order.leader
    assert leader is not None  # noqa: S101  (for the type checker)
    between = order.n_events - 1 - leader.last if leader.n else 0
    leader = replace(
        leader,
        n=leader.n + 1,
        last=order.n_events,
        led_at=order.n_led + 1,
        most_between=max(leader.most_between, between),
    )

    phase = order.phase
    if phase is OrderPhase.FINDING and leader.n > SETTLING_STEPS:
        phase = OrderPhase.SETTLED
    step = OptimizerStep.ENDS_FIRST if order.begins_anew else OptimizerStep.ENDS
    n_discarded = order.n_led if order.begins_anew else order.n_discarded
    order = replace(
        order,
        phase=phase,
        leader=leader,
        n_led=order.n_led + 1,
        n_discarded=n_discarded,
        begins_anew=False,
    )
    return order, step


def _judge_follower_step(
    order: OptimizerOrder, leader: SteppedOptimizer, key: int
) -> tuple[OptimizerOrder, OptimizerStep]:
    """Note a step of another optimizer, which may take the lead."""
    optimizer = _optimizer(order, key)
    is_known = optimizer.n > 0
    n_led = order.n_led - max(optimizer.led_at, order.reign_led)

    # A new optimizer within the steps of an outer one is an inner one, however late it comes.
    may_be_outer = is_known or not order.is_outer
    # Two that take turns for several steps each would take the lead from each other for ever.
    may_be_outer &= _MIN_INNER_STEPS * optimizer.n <= leader.n
    if order.phase is OrderPhase.FINDING and may_be_outer and n_led >= _MIN_INNER_STEPS:
        between = order.n_events - 1 - optimizer.last
        n_taken = 0 if is_known else leader.n_taken + 1
        most_between = max(optimizer.most_between, between)
        optimizer = replace(optimizer, most_between=most_between, n_taken=n_taken)
        is_endless = n_taken > _MAX_TAKEN
        order = replace(
            _with_leader(order, optimizer),
            phase=OrderPhase.ANY if is_endless else order.phase,
            begins_anew=not is_endless,
            n_gone=0,
        )
        return _count_leader_step(order)

    if not _has_stopped(order, leader, optimizer):
        return _note_inner_step(order, key)

    n_gone = order.n_gone + 1
    phase = OrderPhase.ANY if n_gone > _MAX_GONE else order.phase
    order = replace(_with_leader(order, replace(optimizer, most_between=0)), n_gone=n_gone)
    return _count_leader_step(replace(order, phase=phase))


def _has_stopped(
    order: OptimizerOrder, leader: SteppedOptimizer, optimizer: SteppedOptimizer
) -> bool:
    """Return whether the leader is taken to step no more, now that another one steps."""
    n_foreign = order.n_events - leader.last
    known_pause = _FOREIGN_FACTOR * leader.most_between
    if order.phase is not OrderPhase.FINDING:
        return n_foreign >= max(FOREIGN_STEPS, known_pause)

    # Early on, a few others that step many times each may be the inner ones of the leader.
    steppers = {follower.key for follower in order.followers if follower.last > leader.last}
    n_steppers = len(steppers | {optimizer.key})
    is_of_many = n_steppers >= FOREIGN_STEPS and n_foreign >= known_pause
    return is_of_many or n_foreign >= max(SETTLING_STEPS, known_pause)


def _count_any_step(order: OptimizerOrder, key: int) -> tuple[OptimizerOrder, OptimizerStep]:
    """Count a step of any optimizer, unless their order proves to repeat."""
    optimizer = _optimizer(order, key)
    n_between = order.n_events - 1 - optimizer.last
    n_others = sum(follower.last > optimizer.last for follower in _all(order))

    # One optimizer for each parameter: all of them have stepped once, and the first comes again.
    is_round = optimizer.n > 0 and n_between >= FOREIGN_STEPS and n_between == n_others
    if not is_round:
        return _count_leader_step(_with_leader(order, optimizer))

    is_settled = any(stepped.n > SETTLING_STEPS for stepped in _all(order))
    phase = OrderPhase.SETTLED if is_settled else OrderPhase.FINDING
    order = _with_leader(order, optimizer)
    order = replace(order, phase=phase, n_gone=0, is_outer=True, begins_anew=not is_settled)
    return _count_leader_step(order)


def _note_inner_step(order: OptimizerOrder, key: int) -> tuple[OptimizerOrder, OptimizerStep]:
    """Note a step within a step of the program."""
    optimizer = _optimizer(order, key)
    between = order.n_events - 1 - optimizer.last
    optimizer = replace(
        optimizer,
        n=optimizer.n + 1,
        last=order.n_events,
        led_at=order.n_led,
        most_between=max(optimizer.most_between, between),
    )
    # One that steps again while another leads belongs within the steps of that one.
    is_outer = order.is_outer or optimizer.n > 1
    order = replace(order, followers=_with(order.followers, optimizer), is_outer=is_outer)
    return order, OptimizerStep.WITHIN


def _with_leader(order: OptimizerOrder, optimizer: SteppedOptimizer) -> OptimizerOrder:
    """Return the order with another leader, whose own step is not counted yet."""
    followers = tuple(follower for follower in order.followers if follower.key != optimizer.key)
    if order.leader is not None and order.leader.key != optimizer.key:
        followers = _with(followers, order.leader)
    return replace(
        order,
        leader=optimizer,
        followers=followers,
        reign_led=order.n_led,
        reign_event=order.n_events - 1,
        is_outer=False,
        begins_anew=False,
    )


def _with(
    followers: tuple[SteppedOptimizer, ...], optimizer: SteppedOptimizer
) -> tuple[SteppedOptimizer, ...]:
    """Return the followers with one of them added or replaced, without those beyond the limit."""
    kept = [follower for follower in followers if follower.key != optimizer.key]
    return (*kept[-(MAX_REMEMBERED - 1) :], optimizer)


def _optimizer(order: OptimizerOrder, key: int) -> SteppedOptimizer:
    """Return what is known of an optimizer: nothing, if it has not stepped before."""
    return next((stepped for stepped in _all(order) if stepped.key == key), SteppedOptimizer(key))


def _all(order: OptimizerOrder) -> tuple[SteppedOptimizer, ...]:
    """Return all optimizers that have stepped and still exist."""
    return order.followers if order.leader is None else (order.leader, *order.followers)
