"""Decodes JSON that profkit wrote, which is input like any other."""

from typing import Any, Final

import msgspec

_MAX_INT: Final = (1 << 63) - 1
UNREADABLE: Final = (ValueError, RecursionError)
"""Raised for text that is not JSON, is not UTF-8, has other types, or is nested too deeply."""


def decode_plain(text: bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """Decode JSON text.

    Raises:
        ValueError: It is not JSON, or has an integer beyond 64 bits, unlike all of profkit's.
        RecursionError: It is nested too deeply.
    """
    tree = msgspec.json.decode(text)

    # A loop over a growing list visits the tree without recursion.
    nodes = [tree]
    for node in nodes:
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()
        elif isinstance(node, int) and abs(node) > _MAX_INT:
            raise ValueError("a number is beyond 64 bits")
    return tree
