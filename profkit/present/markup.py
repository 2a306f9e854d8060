"""HTML templates whose values are all escaped, with control characters made visible."""

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profkit.dataclass import dataclass
from profkit.names import visible
from profkit.patterns import regex
from profkit.units import format_bytes, format_count, format_ns, format_share, format_times

_CODE: Final = regex(r"`{1,2}([^`]+)`{1,2}")


@dataclass(frozen=True)
class Piece:
    """A piece of a sentence, which is code (a name or a line of the program) or prose."""

    text: str
    is_code: bool


def marked(text: str) -> tuple[Piece, ...]:
    """Split a sentence into code, which is between single or double backticks, and prose."""
    parts = _CODE.split(text)
    # The pattern has one group, so that code is at odd places.
    pieces = (Piece(part, is_code=place % 2 == 1) for place, part in enumerate(parts))
    return tuple(piece for piece in pieces if piece.text)


def environment(package: str) -> Environment:
    """Return the environment of the templates in a package's folder ``templates``.

    Undefined values are errors. Filters format numbers with units (``ns``, ``bytes``, ``share``,
    ``count``, ``times``) and split sentences at their backticks (``marked``).
    """
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    made.filters |= {
        "ns": format_ns,
        "bytes": format_bytes,
        "share": format_share,
        "count": format_count,
        "times": format_times,
        "marked": marked,
    }
    return made


def _shown(value: object) -> object:
    """Make the control characters of a value visible, if it is text."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
