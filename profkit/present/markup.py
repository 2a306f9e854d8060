"""Templates of HTML in which every value is escaped and made visible."""

import re
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profkit.names import visible
from profkit.units import format_bytes, format_count, format_ns, format_share, format_times

_CODE: Final = re.compile(r"`{1,2}([^`]+)`{1,2}")


@dataclass(frozen=True)
class Piece:
    """A piece of a sentence.

    Attributes:
        text: It.
        is_code: Whether it is a name of the program or a line of code.
    """

    text: str
    is_code: bool


def marked(text: str) -> tuple[Piece, ...]:
    """A sentence cut at its backticks, which stand around code.

    Args:
        text: Such as ``Empty `history` once``, or the same with two backticks.
    """
    parts = _CODE.split(text)
    found = (Piece(part, is_code=place % 2 == 1) for place, part in enumerate(parts))
    return tuple(each for each in found if each.text)


def environment(package: str) -> Environment:
    """The templates of a package, which ask for no value that they are not given.

    Their filters spell numbers with units (``ns``, ``bytes``, ``share``, ``count``, ``times``) and
    cut sentences at their backticks (``marked``).

    Args:
        package: The package with the folder ``templates``.
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
    """A value as a page has it: of a text whatever a browser would obey is made visible."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
