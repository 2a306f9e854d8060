"""Matching items of two recordings that are the same."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")

_MAX_PAIRS: Final = 10_000
"""Larger groups are matched in order, without comparing distances."""


def match_items(
    before: Sequence[Item],
    after: Sequence[Item],
    keys: Sequence[Callable[[Item], Hashable | None]],
    distance: Callable[[Item, Item], int],
) -> tuple[list[tuple[Item, Item]], list[Item], list[Item]]:
    """Match items by one key after another, strictest first; the closest of equal key first.

    Args:
        keys: Each returns the identity of an item, or None for an item that it cannot match.
        distance: Distance between two items of equal key.

    Returns:
        The matched pairs, the rest of ``before``, and the rest of ``after``.
    """
    pairs: list[tuple[Item, Item]] = []
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
    items: Sequence[Item], key: Callable[[Item], Hashable | None]
) -> dict[Hashable, list[Item]]:
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        name = key(item)
        if name is not None:
            groups.setdefault(name, []).append(item)
    return groups


def _closest(
    ones: list[Item], others: list[Item], distance: Callable[[Item, Item], int]
) -> list[tuple[Item, Item]]:
    if len(ones) * len(others) > _MAX_PAIRS:
        return list(zip(ones, others, strict=False))
    apart = sorted(
        (distance(one, other), i, j) for i, one in enumerate(ones) for j, other in enumerate(others)
    )
    found: list[tuple[Item, Item]] = []
    left, right = set(range(len(ones))), set(range(len(others)))
    for _, i, j in apart:
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            found.append((ones[i], others[j]))
    return found
