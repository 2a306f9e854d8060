"""Patterns of modules are compiled on first use, and are then what ``re.compile`` returns."""

import pickle
import re

import pytest

from profkit.patterns import regex


def test_it_has_the_methods_of_the_compiled_pattern() -> None:
    ours, theirs = regex(r"(a+)b", re.IGNORECASE), re.compile(r"(a+)b", re.IGNORECASE)
    assert (ours.pattern, ours.flags, ours.groups) == (theirs.pattern, theirs.flags, theirs.groups)
    assert ours.sub("-", "xAAby") == theirs.sub("-", "xAAby") == "x-y"
    match = pickle.loads(pickle.dumps(ours)).fullmatch("aab")  # noqa: S301
    assert match is not None
    assert match[1] == "aa"
    assert regex(rb"\d").findall(b"a1b2") == [b"1", b"2"]


def test_nothing_is_compiled_before_the_first_use() -> None:
    wrong = regex("(")
    assert wrong.pattern == "("
    with pytest.raises(re.error):
        wrong.search("a")
