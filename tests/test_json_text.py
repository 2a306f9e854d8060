"""JSON text of names that a program or a stranger chose."""

import json

import pytest

from profkit.dataclass import dataclass
from profkit.json_text import encode


@dataclass(frozen=True)
class Named:
    """Something with a name."""

    name: str


@pytest.mark.parametrize(
    "name",
    ["train.py", "größe", "\u65e5\u672c", "a\u0085b", "\u202egpj.exe", "\u2066x\u2069", "\ufeff"],
)
def test_a_name_is_the_same_when_it_is_decoded(name: str) -> None:
    text = encode({"name": name, name: [Named(name)]})
    assert json.loads(text) == {"name": name, name: [{"name": name}]}


@pytest.mark.parametrize(
    "char", ["\u0080", "\u009b", "\u061c", "\u200f", "\u202e", "\u2069", "\ufeff"]
)
def test_what_moves_the_cursor_or_reverses_text_is_escaped(char: str) -> None:
    assert encode([f"größe{char}"]) == f'["größe\\u{ord(char):04x}"]'.encode()


def test_bytes_of_another_encoding_are_escaped() -> None:
    assert json.loads(encode(Named("pr\udcff.py"))) == {"name": "pr\\udcff.py"}
