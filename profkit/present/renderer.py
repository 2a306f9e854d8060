"""What a renderer is: a module with a docstring, ``INFO``, ``Options`` and ``render``.

A renderer turns a report into the bytes of one format. What it says of a program is in the report.
Formats that also draw or hand on the recording itself (a timeline, a flame graph, the events) have
an option ``recording``; they do without where a report comes alone, and say so.

More functions a module may have and need not. ``pieces(report, options)`` yields the same
bytes piece by piece, for products that may be larger than memory. ``together(products)`` makes one
product of several; without it they follow each other, and JSON becomes an array. And where one
product is one table of several, chosen by an option ``table``, ``table_names(report, options)``
says which there are. ``remark(report, options)`` says of a product what it cannot say itself.

A module is named after its format, so that one format is found without importing all others. A word
may follow behind an underscore, as in ``csv_tables``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, Protocol, cast

from profkit.engine.context import Context
from profkit.errors import PluginError, UsageError
from profkit.model.report import Report
from profkit.plugins import Offer, discover, offers

PACKAGE = "profkit.renderers"
GROUP = "profkit.renderers"
"""Entry points of third parties' renderers."""


@dataclass(frozen=True)
class RendererInfo:
    """A renderer's card.

    Attributes:
        name: What ``--format`` calls it.
        suffix: How files of the format end, with the dot.
        media_type: The format's media type.
        shows: What it is for: ``report``, and ``profkit analyze --format`` offers it too; or
            ``recording``, for other programs, by ``profkit export`` alone.
        opened_by: What opens such a file, as in ``ui.perfetto.dev``; empty where that is plain.
    """

    name: str
    suffix: str
    media_type: str
    shows: Literal["report", "recording"] = "report"
    opened_by: str = ""


@dataclass(frozen=True)
class LoadedRecording:
    """What a report was made from, for the formats that show more than the report has.

    Attributes:
        context: All that is known of it.
        paths: The files, as they were given: local paths or URLs.
    """

    context: Context
    paths: tuple[str, ...]


@dataclass(frozen=True)
class ReadersOptions:
    """How much of a report the formats for readers show.

    Attributes:
        top: How many findings, kernels and operators to show.
        verbose: Whether to show all of them.
        base: An absolute folder; paths inside are shown relative to it.
    """

    top: int = 5
    verbose: bool = False
    base: str = ""

    @property
    def most(self) -> int | None:
        """How many to show of what can be many; None for all."""
        return None if self.verbose else self.top


class Renderer(Protocol):
    """The shape of a renderer's module."""

    __doc__: str | None
    __name__: str
    INFO: RendererInfo
    Options: type[Any]

    @staticmethod
    def render(report: Report, options: Any) -> bytes:  # noqa: ANN401  (each renderer has its own)
        """The report in this format."""
        ...


@lru_cache(maxsize=1)
def renderers() -> tuple[Renderer, ...]:
    """Every renderer, profkit's own and third parties', by name.

    Raises:
        PluginError: If a module lacks a part of the protocol, or two have the same name.
    """
    found: dict[str, Renderer] = {}
    for module in map(_whole, discover(PACKAGE, GROUP)):
        name = module.INFO.name
        if name in found:
            raise PluginError(
                f"Two renderers are called {name!r}: {found[name].__name__} and {module.__name__}.",
                "Uninstall one of them.",
            )
        found[name] = module
    return tuple(found[name] for name in sorted(found))


def renderer(name: str) -> Renderer:
    """The renderer of a name; others are imported only where no module is named after it.

    Args:
        name: As in ``--format``.

    Raises:
        PluginError: If its module lacks a part of the protocol, or two have that name.
        UsageError: If there is none of that name.
    """
    named = [offer for offer in offers(PACKAGE, GROUP) if _is_of(offer, name)]
    if len(named) == 1:
        module = _whole(named[0].load())
        if module.INFO.name == name:
            return module
    known = {each.INFO.name: each for each in renderers()}
    if name not in known:
        raise UsageError(
            f"There is no report format {name!r}.", f"There are {', '.join(sorted(known))}."
        )
    return known[name]


def _is_of(offer: Offer, name: str) -> bool:
    """Whether a module is named after a format."""
    return offer.name == name or offer.name.startswith(f"{name}_")


def _whole(module: ModuleType) -> Renderer:
    """A module as a renderer, if it is one.

    Raises:
        PluginError: It lacks a part of the protocol.
    """
    for part in ("INFO", "Options", "render"):
        if not hasattr(module, part):
            raise PluginError(f"The renderer {module.__name__} has no {part}.")
    return cast("Renderer", module)


def accepted(module: Renderer, options: dict[str, Any]) -> dict[str, Any]:
    """Those of some options that a renderer has.

    Args:
        module: The renderer.
        options: Values by the name of the option.
    """
    own = {field.name for field in fields(module.Options)}
    return {name: value for name, value in options.items() if name in own}


def _more(module: Renderer, name: str) -> Callable[..., Any] | None:
    """A function that a renderer may have; a module of that name within a package is none."""
    found = getattr(module, name, None)
    return found if callable(found) else None


def streams(module: Renderer) -> bool:
    """Whether a format is made piece by piece, because a product may be large.

    Args:
        module: The renderer.
    """
    return _more(module, "pieces") is not None


def pieces(module: Renderer, report: Report, options: dict[str, Any]) -> Iterator[bytes]:
    """A report in some format, piece by piece where the format can be larger than memory.

    Args:
        module: The renderer.
        options: Values by the name of the option; those that it does not have are passed over.
    """
    own = module.Options(**accepted(module, options))
    makes = _more(module, "pieces")
    if makes is None:
        yield module.render(report, own)
    else:
        yield from makes(report, own)


def table_names(module: Renderer, report: Report, options: dict[str, Any]) -> tuple[str, ...]:
    """The tables that a format has of a report; none for formats that are no tables.

    Args:
        module: The renderer.
        options: Values by the name of the option; those that it does not have are passed over.
    """
    names = _more(module, "table_names")
    if names is None:
        return ()
    return tuple(names(report, module.Options(**accepted(module, options))))


def remark(module: Renderer, report: Report, options: dict[str, Any]) -> str:
    """What a reader has to know of a product that it cannot say itself; mostly nothing.

    Args:
        module: The renderer.
        options: Values by the name of the option; those that it does not have are passed over.
    """
    says = _more(module, "remark")
    return str(says(report, module.Options(**accepted(module, options)))) if says else ""


def together(module: Renderer, products: Sequence[bytes]) -> bytes:
    """Several products of one renderer as one.

    Args:
        module: The renderer.
        products: What it made of each report.
    """
    if len(products) == 1:
        return products[0]
    joins = _more(module, "together")
    if joins is not None:
        return bytes(joins(products))
    if module.INFO.media_type == "application/json":
        return b"[" + b",".join(product.rstrip() for product in products) + b"]\n"
    return b"\n".join(products)
