"""Which thing of one recording is the same as which thing of another."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

Thing = TypeVar("Thing")

_MOST_PAIRS: Final = 10_000
"""Of groups with more possible pairs than this the first goes with the first, and so on."""


def paired(
    before: Sequence[Thing],
    after: Sequence[Thing],
    keys: Sequence[Callable[[Thing], Hashable | None]],
    distance: Callable[[Thing, Thing], int],
) -> tuple[list[tuple[Thing, Thing]], list[Thing], list[Thing]]:
    """Pair things by one key after another, the strictest first.

    Under a looser key, what stands closest together is a pair.

    Args:
        before: Things of the first recording.
        after: Things of the second one.
        keys: Each tells what a thing is; a thing of which it says None has no pair under it.
        distance: How far apart two things of one key are.

    Returns:
        The pairs, the rest of ``before``, and the rest of ``after``.
    """
    pairs: list[tuple[Thing, Thing]] = []
    left, right = list(before), list(after)
    for key in keys:
        left_by, right_by = _grouped(left, key), _grouped(right, key)
        taken: set[int] = set()
        for name, ones in left_by.items():
            for one, other in _closest(ones, right_by.get(name, []), distance):
                pairs.append((one, other))
                taken |= {id(one), id(other)}
        left = [each for each in left if id(each) not in taken]
        right = [each for each in right if id(each) not in taken]
    return pairs, left, right


def _grouped(
    things: Sequence[Thing], key: Callable[[Thing], Hashable | None]
) -> dict[Hashable, list[Thing]]:
    groups: dict[Hashable, list[Thing]] = {}
    for thing in things:
        name = key(thing)
        if name is not None:
            groups.setdefault(name, []).append(thing)
    return groups


def _closest(
    ones: list[Thing], others: list[Thing], distance: Callable[[Thing, Thing], int]
) -> list[tuple[Thing, Thing]]:
    if len(ones) * len(others) > _MOST_PAIRS:
        return list(zip(ones, others, strict=False))
    apart = sorted(
        (distance(one, other), i, j) for i, one in enumerate(ones) for j, other in enumerate(others)
    )
    found: list[tuple[Thing, Thing]] = []
    left, right = set(range(len(ones))), set(range(len(others)))
    for _, i, j in apart:
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            found.append((ones[i], others[j]))
    return found
