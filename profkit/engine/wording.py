"""Parts of sentences that several rules and renderers share."""

from collections.abc import Sequence
from typing import Final

from profkit.engine.context import Context
from profkit.model.events import NO_ROW, Int32s, Int64s, Rows
from profkit.model.location import Location
from profkit.model.process_group import ProcessGroup
from profkit.model.torch_names import TENSOR_METHOD
from profkit.names import visible
from profkit.patterns import regex
from profkit.units import format_count, format_ns, format_times

MAX_LINES: Final = 3
"""Source lines that a finding names at most."""
_VERSION: Final = regex(r"^(\d+)\.(\d+)")
_MAX_RUNS: Final = 4
_MAX_SINGLE: Final = 2


def times_per_step(ctx: Context, n: int) -> str:
    """``once per step``, ``about 2.5 times per step``, ``3 times in 10 steps``.

    Args:
        n: The count over all steps, or over a recording without steps: then ``12 times``.
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
        ns: Nanoseconds over all steps, or over a recording without steps.
    """
    return format_per_step(ns, len(ctx.steps))


def format_per_step(ns: float, n_steps: int) -> str:
    """Return ``1.20 ms per step``; without steps ``1.20 ms``.

    Args:
        ns: Nanoseconds over all steps.
    """
    return f"{format_ns(ns / n_steps)} per step" if n_steps else format_ns(ns)


def at(location: Location) -> str:
    """``at train.py:12``, ``in train_step (train.py:10)``, ``in train.py``; nothing without file.

    With a leading space.
    """
    if location.file is None:
        return ""
    return f" {'in' if location.precision == 'function' else 'at'} {location.place}"


def at_first(locations: Sequence[Location]) -> str:
    """Return the words of :func:`at` for the first, costliest location; empty without locations."""
    return at(locations[0]) if locations else ""


def known_locations(*locations: Location) -> tuple[Location, ...]:
    """Return the locations that have a line, an operator or a module."""
    return tuple(
        location for location in locations if location.file or location.op or location.module
    )


def find_costliest_lines(
    ctx: Context, rows: Rows | Int32s, spent_ns: Int64s | None = None
) -> tuple[Location, ...]:
    """Return the known source lines of some host rows with the most time, the costliest first.

    Args:
        rows: Shape ``(k,)``; :data:`NO_ROW` for work that no known row launched.
        spent_ns: The time to add for each; by default its own duration. Shape ``(k,)``.
    """
    spent_ns = ctx.events.dur_ns[rows] if spent_ns is None else spent_ns
    is_row = rows != NO_ROW
    return known_locations(*ctx.costliest_lines(rows[is_row], MAX_LINES, spent_ns[is_row]))


def tensor_method(ctx: Context, row: int) -> str | None:
    """Return the method of a tensor that called an operator, such as ``item``.

    Returns:
        None if the recording has no stacks, or the operator was called otherwise.
    """
    parent = int(ctx.tree.parent[row])
    if parent == NO_ROW:
        return None
    match = TENSOR_METHOD.match(ctx.events.name_of(parent))
    return match[1] if match else None


def from_torch(ctx: Context, version: str, where: str = "") -> str:
    """Return `` (from torch 2.4 on)``, or nothing if the recorded torch is known to be as new.

    Args:
        version: Major and minor version.
        where: What the version is for, such as ``on a CPU``.
    """
    recorded = _VERSION.match(ctx.trace.capture.torch or "") if ctx.trace.capture else None
    if recorded is not None and tuple(map(int, recorded.groups())) >= tuple(
        map(int, version.split("."))
    ):
        return ""
    return f" ({where}{' ' if where else ''}from torch {version} on)"


def listed(parts: Sequence[str]) -> str:
    """Return parts as in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def counted(n: int, one: str, many: str = "") -> str:
    """``1 entry``, ``300 entries``.

    Args:
        many: The plural; by default the singular with an s.
    """
    return f"{format_count(n)} {one if n == 1 else many or f'{one}s'}"


def rank_list(ranks: Sequence[int]) -> str:
    """Return ranks in a sentence: ``0 to 3, 7``; of many gaps the first ones."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])

    words = [
        ", ".join(map(str, run)) if len(run) <= _MAX_SINGLE else f"{run[0]} to {run[-1]}"
        for run in runs[:_MAX_RUNS]
    ]
    return ", ".join((*words, "…") if len(runs) > _MAX_RUNS else words)


def the_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 to 2``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {rank_list(ranks)}"


def the_group(group: ProcessGroup, ranks: Sequence[int]) -> str:
    """``the group dp (ranks 0 to 3)``; without name ``ranks 0 to 3``.

    Args:
        ranks: Its recorded ranks.
    """
    name = group.description or group.name
    listed = the_ranks(ranks)
    return f"the group `{visible(name)}` ({listed})" if name else listed
