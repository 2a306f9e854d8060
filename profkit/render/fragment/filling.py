"""The fragment's templates, with every value in them escaped and made visible."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from profkit.names import visible
from profkit.units import format_count

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Table:
    """A table whose first column holds names and whose last may say where; figures between.

    Attributes:
        titles: A title for each column.
        rows: Cells, as text.
        n_left: Columns at the end that hold words.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_left: int = 1


def fill(template: str, **values: object) -> bytes:
    """A template with values in it, in UTF-8.

    Args:
        template: The file's name in ``templates/``.
        **values: All that it asks for.
    """
    filled = _environment().get_template(template).render(values)
    return filled.encode("utf-8", "backslashreplace")


@lru_cache(maxsize=1)
def _environment() -> "Environment":
    # Every format is imported to know their names; those that fill no template load none of this.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    def shown(value: object) -> object:
        """A text with nothing left in it that a browser would obey."""
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("profkit.render.fragment"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": format_count, "code": _code}
    return environment


def _code(text: str) -> list[tuple[str, bool]]:
    """A sentence cut at its backticks: pieces, and whether each is code."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return [("`".join(parts), False)]
    return [(part, place % 2 == 1) for place, part in enumerate(parts) if part]
