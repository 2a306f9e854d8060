"""Items of two recordings match by the strictest key first, then by distance."""

from hypothesis import given
from hypothesis import strategies as st

from profkit.index.pairing import match_items

Item = tuple[str, int]
KEYS = (lambda thing: thing, lambda thing: thing[0] or None)


def apart(one: Item, other: Item) -> int:
    return abs(one[1] - other[1])


def test_an_exact_match_precedes_a_closer_item() -> None:
    pairs, left, right = match_items([("a", 1), ("a", 5)], [("a", 5), ("a", 2)], KEYS, apart)
    assert sorted(pairs) == [(("a", 1), ("a", 2)), (("a", 5), ("a", 5))]
    assert left == []
    assert right == []


def test_the_closest_items_match_and_the_rest_is_returned() -> None:
    pairs, left, right = match_items([("a", 1), ("a", 10)], [("a", 11)], KEYS, apart)
    assert pairs == [(("a", 10), ("a", 11))]
    assert left == [("a", 1)]
    assert right == []


def test_an_item_without_a_key_has_no_match() -> None:
    assert match_items([("", 1)], [("", 2)], KEYS, apart) == ([], [("", 1)], [("", 2)])


def test_large_groups_are_matched_in_order() -> None:
    pairs, left, right = match_items(
        [("a", n) for n in range(0, 400, 2)], [("a", n) for n in range(1, 801, 2)], KEYS, apart
    )
    assert pairs[:2] == [(("a", 0), ("a", 1)), (("a", 2), ("a", 3))]
    assert (len(pairs), len(left), len(right)) == (200, 0, 200)


things = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=9)


@given(before=things, after=things)
def test_every_item_is_returned_exactly_once(before: list[Item], after: list[Item]) -> None:
    pairs, left, right = match_items(before, after, KEYS, apart)
    assert sorted([earlier for earlier, _ in pairs] + left) == sorted(before)
    assert sorted([later for _, later in pairs] + right) == sorted(after)
    assert all(earlier[0] == later[0] for earlier, later in pairs)
    assert not {thing[0] for thing in left} & {thing[0] for thing in right}
