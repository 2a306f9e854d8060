"""Helpers of the browser tests: logs of pages, touch gestures, accessibility checks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page, Route

SERIOUS = {"serious", "critical"}

Opener = Callable[..., Page]
"""Opens an address or a file: ``opened(url, allowed=…, expected=…)`` as in :class:`PageLog`, and
arguments of playwright's ``new_context``. Folded sections are opened unless ``unfolded=False``."""


@dataclass
class PageLog:
    """Console errors and forbidden requests of a page.

    Attributes:
        page: The page.
        allowed: Prefixes of the addresses that it may request.
        expected: Texts in console messages that a test provokes.
        errors: Errors and warnings on the console, and uncaught exceptions.
        requests: Addresses that it requested and that are not allowed.
    """

    page: Page
    allowed: tuple[str, ...]
    expected: tuple[str, ...] = ()
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start logging, and block requests that are not allowed."""
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._on_console)
        self.page.context.route("**/*", self._on_request)

    def _on_console(self, message: Any) -> None:  # noqa: ANN401  (playwright's)
        is_expected = any(text in message.text for text in self.expected)
        if message.type in {"error", "warning"} and not is_expected:
            self.errors.append(message.text)

    def _on_request(self, route: Route) -> None:
        if route.request.url.startswith(self.allowed):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


class Fingers:
    """Touch points on an element, at shares of its width.

    Args:
        page: The page.
        element: Its selector.
        below: How far they are below its upper edge, in pixels.
    """

    def __init__(self, page: Page, element: str, below: int = 60) -> None:
        page.locator(element).scroll_into_view_if_needed()
        box = page.locator(element).bounding_box()
        assert box is not None
        self._box = box
        self._below = below
        self._session = page.context.new_cdp_session(page)

    def at(self, kind: str, *shares: float, first: int = 0) -> None:
        """Send a touch event with points at some shares; their ids start with `first`."""
        x, y, width = self._box["x"], self._box["y"] + self._below, self._box["width"]
        points = [
            {"x": x + share * width, "y": y, "id": i} for i, share in enumerate(shares, first)
        ]
        event = {"type": kind, "touchPoints": points}
        self._session.send("Input.dispatchTouchEvent", event)

    def go(self, begin: tuple[float, ...], end: tuple[float, ...], n_moves: int = 5) -> None:
        """Put fingers down one after the other, move them, and do not lift them."""
        for n in range(1, len(begin) + 1):
            self.at("touchStart", *begin[:n])
        for move in range(1, n_moves + 1):
            part = move / n_moves
            self.at("touchMove", *(a + (b - a) * part for a, b in zip(begin, end, strict=True)))


def violations(page: Page, axe: str, *, frames: bool = True) -> list[str]:
    """Return the serious violations that axe finds: the rule, and the first elements.

    Args:
        page: The page.
        axe: The script of axe.
        frames: Whether to check frames too.
    """
    page.evaluate(axe)
    options = {"resultTypes": ["violations"], "iframes": frames}
    results = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {[node['html'][:160] for node in violation['nodes'][:3]]}"
        for violation in results["violations"]
        if violation["impact"] in SERIOUS
    ]
