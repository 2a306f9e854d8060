"""The fragment's templates, with every value in them escaped and made visible."""

from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment

from profkit.present.markup import environment


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
def _environment() -> Environment:
    return environment("profkit.renderers.fragment")
