"""Checks that figures are in the formats that people read."""

from collections.abc import Iterable

from profkit.api import render
from profkit.model.report import Report


def assert_formats_show(report: Report, texts: Iterable[str]) -> None:
    """Check that the verbose terminal, Markdown and both kinds of HTML have some texts."""
    products = {
        "text": render(report, "text", verbose=True),
        **{name: render(report, name) for name in ("md", "fragment", "html")},
    }
    missing = [
        (name, text)
        for name, product in products.items()
        for text in texts
        if text not in product.decode()
    ]
    assert missing == []
