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
    """Match items by one key after another, strictest first, and the closest of equal key first.

    Args:
        keys: Each returns the identity of an item, or None for an item that it cannot match.
        distance: Distance between two items of equal key.

    Returns:
        The matched pairs, and the unmatched items of ``before`` and of ``after``.
    """
    pairs: list[tuple[Item, Item]] = []
    left, right = list(before), list(after)
    for key in keys:
        left_by, right_by = _group(left, key), _group(right, key)
        taken: set[int] = set()
        for name, candidates in left_by.items():
            for pair in _pair_closest(candidates, right_by.get(name, []), distance):
                pairs.append(pair)
                taken |= set(map(id, pair))

        # Items may be equal, so the matched ones are distinguished by identity.
        left = [item for item in left if id(item) not in taken]
        right = [item for item in right if id(item) not in taken]
    return pairs, left, right


def _group(
    items: Sequence[Item], key: Callable[[Item], Hashable | None]
) -> dict[Hashable, list[Item]]:
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        name = key(item)
        if name is not None:
            groups.setdefault(name, []).append(item)
    return groups


def _pair_closest(
    before: list[Item], after: list[Item], distance: Callable[[Item, Item], int]
) -> list[tuple[Item, Item]]:
    if len(before) * len(after) > _MAX_PAIRS:
        return list(zip(before, after, strict=False))

    # Greedy: the closest of all pairs first.
    by_distance = sorted(
        (distance(old, new), i, j) for i, old in enumerate(before) for j, new in enumerate(after)
    )

    pairs: list[tuple[Item, Item]] = []
    left, right = set(range(len(before))), set(range(len(after)))
    for _, i, j in by_distance:
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            pairs.append((before[i], after[j]))
    return pairs
