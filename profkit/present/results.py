"""Renders results that are no reports: comparisons, checks, explanations and histories."""

from importlib import import_module
from typing import Any, Final

from profkit.errors import UsageError
from profkit.model.check import Check
from profkit.model.difference import Difference
from profkit.model.explanation import Explanation
from profkit.model.history import History
from profkit.present.renderer import (
    offers_result,
    optional_function,
    options_of,
    renderer,
    renderers,
)

Result = Difference | Check | Explanation | History

_KINDS: Final[dict[type[Result], tuple[str, str]]] = {
    Difference: ("difference", "A comparison"),
    Check: ("check", "A check"),
    Explanation: ("explanation", "An explanation"),
    History: ("history", "A history"),
}
"""The word for a result in names of functions, and its name in messages."""
_DOCUMENT: Final = "render_document"


def render_result(result: Result, name: str, options: dict[str, Any]) -> bytes:
    """Render a result in some format; options that the renderer lacks are ignored.

    Raises:
        UsageError: There is no such format of it.
    """
    kind, title = _KINDS[type(result)]
    function_name = f"render_{kind}"

    if name == "html" and options.get("graphs"):
        tables = render_result(result, "fragment", options)
        make = optional_function(renderer(name), function_name)
        return bytes(make(result, tables, options["graphs"], options.get("base", "")))  # type: ignore[misc]
    if name == "html":  # the fragment as a page: there is no recording to draw
        name, options = "fragment", options | {"is_page": True}

    module = renderer(name)
    chosen = options_of(module, options)
    if make := optional_function(module, function_name):
        return bytes(make(result, chosen))
    if lay_out := optional_function(module, _DOCUMENT):
        # A document is imported when it is needed: most commands render reports alone.
        documents = import_module(f"profkit.present.{kind}_document")
        build_document = getattr(documents, f"build_{kind}_document")
        return bytes(lay_out(build_document(result, chosen), chosen))

    names = [offer.INFO.name for offer in renderers() if offers_result(offer, kind)]
    raise UsageError(
        f"{title} has no format {name!r}.",
        f"Its formats are {', '.join(names)}.",
    )
