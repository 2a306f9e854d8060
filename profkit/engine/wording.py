"""Parts of sentences that several rules need, in the user's own words and figures."""

from profkit.engine.context import Context
from profkit.model.events import NO_ROW
from profkit.model.location import Location
from profkit.model.torch_names import TENSOR_METHOD
from profkit.units import format_count, format_ns, format_times


def times_per_step(ctx: Context, n: int) -> str:
    """``once per step``, ``3 times per step``, ``about 2.5 times per step``; without steps ``12 times``.

    Args:
        n: How often it happens in all steps, or in the whole recording.
    """
    n_steps = len(ctx.steps)
    if not n_steps:
        return format_times(n)
    if n % n_steps == 0:
        return f"{format_times(n // n_steps)} per step"
    if n < n_steps:
        return f"{format_times(n)} in {format_count(n_steps)} steps"
    return f"about {n / n_steps:.1f} times per step"


def time_per_step(ctx: Context, ns: int) -> str:
    """``1.20 ms per step``; without steps ``1.20 ms``.

    Args:
        ns: Nanoseconds in all steps, or in the whole recording.
    """
    n_steps = len(ctx.steps)
    return f"{format_ns(ns / n_steps)} per step" if n_steps else format_ns(ns)


def at(location: Location) -> str:
    """``at train.py:12``, ``in train_step (train.py:10)``, or nothing where no line is known."""
    if location.file is None:
        return ""
    return f" {'in' if location.precision == 'function' else 'at'} {location.place}"


def known_locations(*locations: Location) -> tuple[Location, ...]:
    """Those locations that say anything: a line, an operator or a module.

    Args:
        locations: What the recording tells of some places, which may be nothing.
    """
    return tuple(each for each in locations if each.file or each.op or each.module)


def tensor_method(ctx: Context, row: int) -> str | None:
    """The method of a tensor that an operator was called by, such as ``item``.

    Args:
        row: The operator's row.

    Returns:
        None where the recording has no stacks, or the operator was called otherwise.
    """
    parent = int(ctx.tree.parent[row])
    if parent == NO_ROW:
        return None
    match = TENSOR_METHOD.match(ctx.events.name_of(parent))
    return match[1] if match else None


def counted(n: int, one: str, many: str = "") -> str:
    """``1 entry``, ``300 entries``.

    Args:
        one: The word for one.
        many: The word for several; by default with an s.
    """
    return f"{format_count(n)} {one if n == 1 else many or f'{one}s'}"
