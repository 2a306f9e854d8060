"""One wait of the host for a device."""

from collections.abc import Callable
from dataclasses import dataclass

from profkit.capture.source.user_code import Place


@dataclass(frozen=True)
class Wait:
    """The host waits for a device.

    Attributes:
        what: What waits, in words.
        place: The innermost place of the user's own code, or None in a thread without any.
        reason: Why the program allows it, or None.
        guard: The innermost guard around it, or None.
        is_foreign: Whether the thread is none of Python's, as autograd's are.
    """

    what: str
    place: Place | None
    reason: str | None
    guard: object
    is_foreign: bool


Listener = Callable[[Wait, bool], None]
"""Is told of a wait, and whether an error that it raises comes out at the waiting line."""
