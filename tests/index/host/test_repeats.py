"""Parts of a sequence that repeat."""

import numpy as np
import pytest

from profkit.index.host.repeats import Repeat, find_repeats


def repeats(text: str, min_times: int = 3, max_period: int = 10) -> list[Repeat]:
    sequence = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
    return list(find_repeats(sequence, min_times, max_period))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xxabcabcabcaby", [Repeat(2, 3, 3)]),
        ("ababababcdcdcd", [Repeat(0, 2, 4), Repeat(8, 2, 3)]),
        ("abababcabababcabababc", [Repeat(0, 2, 3), Repeat(7, 2, 3), Repeat(14, 2, 3)]),
        ("aaaaaaaaaaaa", []),
        ("abcdabcd", []),
        ("ab", []),
        ("", []),
    ],
    ids=["one", "two", "within others", "one value", "too few", "too short", "empty"],
)
def test_short_periods_come_first(text: str, expected: list[Repeat]) -> None:
    assert repeats(text) == expected


def test_a_long_period_is_left_out() -> None:
    assert repeats("abcdabcdabcd", max_period=3) == []
