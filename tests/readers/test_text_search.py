"""Searches of large texts, with the C library's function and without it."""

import pytest

from profkit.readers.kineto import decode


@pytest.mark.parametrize("library", ["C", "Python"])
def test_a_part_is_found_wherever_it_is(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "Python":
        monkeypatch.setattr(decode, "_memmem", None)
    filler = b'{"a": 1}\0' * 100
    for text in (b"cat" + filler, filler + b"cat" + filler, filler + b"cat"):
        assert decode.contains(text, b"cat")
    for text in (b"", b"ca", filler + b"ca"):
        assert not decode.contains(text, b"cat")
