"""The protocol of a renderer: a module with a docstring, ``INFO``, ``Options`` and ``render``.

A renderer turns a report into the bytes of one format. Everything that it says about a program is
in the report. Formats that also draw or contain the recording (a timeline, a flame graph, the
events) have an option ``recording``; without it they omit that part, and say so.

A module may have more functions:

- ``pieces(report, options)`` yields the bytes piece by piece, for products larger than memory;
- ``together(products)`` joins several products; without it they are concatenated, and JSON becomes
  an array;
- ``table_names(report, options)`` lists the tables, where an option ``table`` selects one;
- ``remark(report, options)`` is a sentence that the product itself cannot contain;
- ``render_document(document, options)`` lays out a document, as the formats for people do with
  comparisons, checks, histories and explanations;
- ``render_difference``, ``render_check``, ``render_explanation``, ``render_history`` do it for one
  of these.

What every format promises is a list in CONTRIBUTING.md, which the tests of all renderers check.

A module is named after its format, so that one format is found without importing the others. A word
may follow an underscore, as in ``csv_tables``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, Final, Literal, Protocol, cast

from profkit.arguments import like, require
from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.errors import PluginError, UsageError
from profkit.model.report import Report
from profkit.plugins import Plugin, discover, plugins

PACKAGE: Final = "profkit.renderers"
GROUP: Final = "profkit.renderers"
"""Entry points of third parties' renderers."""


@dataclass(frozen=True)
class RendererInfo:
    """A renderer's name and kind.

    Attributes:
        name: The format, as in ``--format``.
        suffix: The suffix of files, with the dot.
        media_type: The media type.
        shows: ``report`` for formats that ``profkit analyze --format`` offers too; ``recording``
            for formats that other programs read, by ``profkit export`` alone.
        opened_by: What opens such a file, as in ``ui.perfetto.dev``; empty where that is obvious.
        joins_ranks: Whether the ranks of a job are one product also in a format of recordings.
        is_for_people: Whether people read it; else programs do. For people "No problems found." is
            said, and long lists end after some entries.
    """

    name: str
    suffix: str
    media_type: str
    shows: Literal["report", "recording"] = "report"
    opened_by: str = ""
    joins_ranks: bool = False
    is_for_people: bool = False


@dataclass(frozen=True)
class LoadedRecording:
    """The recording behind a report, for the formats that show more than the report.

    Attributes:
        read: Returns the recording with its indexes.
        paths: The files, as they were given: local paths or URLs.
    """

    read: Callable[[], Context]
    paths: tuple[str, ...]

    @cached_property
    def context(self) -> Context:
        """Return the recording with its indexes, read on first use if the report was cached.

        Raises:
            LoadError: It can no longer be read.
        """
        return self.read()


@dataclass(frozen=True)
class RecordingOptions:
    """Options of the formats that show or contain more than the report.

    Attributes:
        recording: The recording behind the report; without it a product has what the report has.
        base: An absolute folder; paths inside are given relative to it.
    """

    recording: LoadedRecording | None = None
    base: str = ""


@dataclass(frozen=True)
class ReadersOptions:
    """How much of a report the formats for people show.

    Attributes:
        top: How many findings, kernels and operators to show.
        verbose: Whether to show all of them.
        base: An absolute folder; paths inside are shown relative to it.
    """

    top: int = 5
    verbose: bool = False
    base: str = ""

    @property
    def limit(self) -> int | None:
        """How many rows of a list to show; None for all."""
        return None if self.verbose else self.top


class Renderer(Protocol):
    """The shape of a renderer's module."""

    __doc__: str | None
    __name__: str
    INFO: RendererInfo
    Options: type[Any]

    @staticmethod
    def render(report: Report, options: Any) -> bytes:  # noqa: ANN401  (each renderer has its own)
        """Render the report in this format."""
        ...


@lru_cache(maxsize=1)
def renderers() -> tuple[Renderer, ...]:
    """List all renderers, of profkit and of plugins, by name.

    Raises:
        PluginError: A module lacks a part of the protocol, or two have the same name.
    """
    by_name: dict[str, Renderer] = {}
    for module in map(_check_protocol, discover(PACKAGE, GROUP)):
        name = module.INFO.name
        if name in by_name:
            raise PluginError(
                f"Two renderers are called {name!r}: "
                f"{by_name[name].__name__} and {module.__name__}.",
                "Uninstall one of them.",
            )
        by_name[name] = module
    return tuple(by_name[name] for name in sorted(by_name))


def renderer(name: str) -> Renderer:
    """Find the renderer of a format; others are imported only if no module is named after it.

    Raises:
        PluginError: Its module lacks a part of the protocol, or two have that name.
        UsageError: There is no such format.
    """
    named = [offer for offer in plugins(PACKAGE, GROUP) if _is_named(offer, name)]
    if len(named) == 1:
        module = _check_protocol(named[0].load())
        if module.INFO.name == name:
            return module

    by_name = {module.INFO.name: module for module in renderers()}
    if name not in by_name:
        raise UsageError(
            f"There is no report format {name!r}.", f"The formats are {', '.join(sorted(by_name))}."
        )
    return by_name[name]


def _is_named(offer: Plugin, name: str) -> bool:
    return offer.name == name or offer.name.startswith(f"{name}_")


def _check_protocol(module: ModuleType) -> Renderer:
    """Check that a module has the parts of a renderer, and return it.

    Raises:
        PluginError: It lacks a part of the protocol.
    """
    for part in ("INFO", "Options", "render"):
        if not hasattr(module, part):
            raise PluginError(f"The renderer {module.__name__} has no {part}.")
    return cast("Renderer", module)


def accepted(module: Renderer, options: dict[str, Any]) -> dict[str, Any]:
    """Filter options by name: return the ones that a renderer has.

    Raises:
        UsageError: One is of another type than its default.
    """
    defaults = {field.name: field.default for field in fields(module.Options)}
    accepted_options = {name: value for name, value in options.items() if name in defaults}
    for name, value in accepted_options.items():
        require(like(defaults[name]), value, f"The option {name} of {module.INFO.name}")
    return accepted_options


def options_of(module: Renderer, options: dict[str, Any]) -> Any:  # noqa: ANN401  (each renderer has its own)
    """Build a renderer's options from options by name; options that it does not have are ignored.

    Raises:
        UsageError: One is of another type than its default.
    """
    return module.Options(**accepted(module, options))


def optional_function(module: Renderer, name: str) -> Callable[..., Any] | None:
    """Return an optional function of a renderer, or None; a module of its name does not count."""
    function = getattr(module, name, None)
    return function if callable(function) else None


def offers_result(module: Renderer, kind: str) -> bool:
    """Return whether a format can show a kind of result, such as ``check`` or ``history``.

    A page in HTML is the fragment of a result in a frame.
    """
    functions = (f"render_{kind}", "render_document")
    has_function = any(optional_function(module, name) is not None for name in functions)
    return module.INFO.name == "html" or (module.INFO.shows == "report" and has_function)


def streams(module: Renderer) -> bool:
    """Tell whether a format is rendered piece by piece, because a product may be large."""
    return optional_function(module, "pieces") is not None


def pieces(module: Renderer, report: Report, options: dict[str, Any]) -> Iterator[bytes]:
    """Render a report piece by piece where the format can be larger than memory.

    Options that the renderer does not have are ignored.
    """
    module_options = options_of(module, options)
    make = optional_function(module, "pieces")
    if make is None:
        yield module.render(report, module_options)
    else:
        yield from make(report, module_options)


def table_names(module: Renderer, report: Report, options: dict[str, Any]) -> tuple[str, ...]:
    """Return the tables that a format has of a report; none for formats without tables."""
    names = optional_function(module, "table_names")
    return tuple(names(report, options_of(module, options))) if names else ()


def remark(module: Renderer, report: Report, options: dict[str, Any]) -> str:
    """Return a sentence on a product that the product itself cannot contain; usually empty."""
    remarks = optional_function(module, "remark")
    return str(remarks(report, options_of(module, options))) if remarks else ""


def together(module: Renderer, products: Sequence[bytes]) -> bytes:
    """Join several products of one renderer."""
    if len(products) == 1:
        return products[0]
    join = optional_function(module, "together")
    if join is not None:
        return bytes(join(products))
    if module.INFO.media_type == "application/json":
        return b"[" + b",".join(product.rstrip() for product in products) + b"]\n"
    return b"\n".join(products)
