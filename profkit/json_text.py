"""JSON text of names and paths that a program or a stranger chose."""

from typing import Any, Final

import msgspec

from profkit.patterns import regex

_INVISIBLE: Final = regex(
    # Controls U+0080 to U+009F, marks and embeddings of directions, isolates, a byte order mark
    r"[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)


def encode(tree: Any) -> bytes:  # noqa: ANN401  (any tree that msgspec encodes)
    """Return a tree as JSON in UTF-8, which a terminal can show as it is.

    Characters that move a terminal's cursor or reverse its text stay the same in the decoded
    strings, and are written as escapes. Strings that are not Unicode, such as paths with bytes of
    another encoding, have a backslash and the number in their place.

    Args:
        tree: Dataclasses, dictionaries, lists, texts, numbers.
    """
    # Almost every tree is valid Unicode: only others pay for a copy.
    try:
        text: bytes = msgspec.json.encode(tree)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(tree)))
    return text if text.isascii() else _escape_invisible(text)


def _escape_invisible(text: bytes) -> bytes:
    """Escape invisible characters, which JSON has in strings alone."""
    escaped = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.decode("utf-8"))
    return escaped.encode("utf-8")


def _escape_surrogates(tree: Any) -> Any:  # noqa: ANN401  (any part of a JSON tree)
    """Return a JSON tree whose strings are valid Unicode."""
    if isinstance(tree, str):
        return tree.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(tree, list | tuple):
        return [_escape_surrogates(item) for item in tree]
    if isinstance(tree, dict):
        return {_escape_surrogates(key): _escape_surrogates(tree[key]) for key in tree}
    return tree
