"""What the tests of pages share: an ear for what a page does, and axe's judgement."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page, Route

SERIOUS = {"serious", "critical"}

Opener = Callable[..., Page]
"""Opens an address or a file: ``opened(url, allowed=…, expected=…)`` as in :class:`Heard`, and what
playwright's ``new_context`` takes."""


@dataclass
class Heard:
    """What a page did beside showing itself.

    Attributes:
        page: The page.
        allowed: What addresses begin with that it may ask for.
        expected: What a complaint may hold, where a test makes the page complain.
        complaints: What stood on the console as an error or a warning, and uncaught errors.
        requests: Addresses that it asked for and was not allowed to.
    """

    page: Page
    allowed: tuple[str, ...]
    expected: tuple[str, ...] = ()
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Begin to hear, and let nothing through that is not allowed."""
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.context.route("**/*", self._pass_or_stop)

    def _hear(self, message: Any) -> None:  # noqa: ANN401  (playwright's)
        is_expected = any(each in message.text for each in self.expected)
        if message.type in {"error", "warning"} and not is_expected:
            self.complaints.append(message.text)

    def _pass_or_stop(self, route: Route) -> None:
        if route.request.url.startswith(self.allowed):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


class Fingers:
    """Fingers on an element of a touchscreen, at shares of its width.

    Args:
        page: The page.
        element: Which element.
    """

    def __init__(self, page: Page, element: str) -> None:
        page.locator(element).scroll_into_view_if_needed()
        box = page.locator(element).bounding_box()
        assert box is not None
        self._box = box
        self._session = page.context.new_cdp_session(page)

    def at(self, kind: str, *shares: float, first: int = 0) -> None:
        """Fingers that touch, move or lift there, counted from the first that does."""
        x, y, width = self._box["x"], self._box["y"] + 60, self._box["width"]
        points = [
            {"x": x + share * width, "y": y, "id": i} for i, share in enumerate(shares, first)
        ]
        told = {"type": kind, "touchPoints": points}
        self._session.send("Input.dispatchTouchEvent", told)

    def go(self, begin: tuple[float, ...], end: tuple[float, ...], n_moves: int = 5) -> None:
        """Put fingers down one after the other, move them, and leave them there."""
        for n in range(1, len(begin) + 1):
            self.at("touchStart", *begin[:n])
        for move in range(1, n_moves + 1):
            part = move / n_moves
            self.at("touchMove", *(a + (b - a) * part for a, b in zip(begin, end, strict=True)))


def violations(page: Page, axe: str, *, frames: bool = True) -> list[str]:
    """What axe finds serious or worse on a page: the rule, and the first elements.

    Args:
        page: The page.
        axe: axe's script.
        frames: Whether pages within it are looked at too.
    """
    page.evaluate(axe)
    asked = {"resultTypes": ["violations"], "iframes": frames}
    results = page.evaluate("(asked) => axe.run(document, asked)", asked)
    return [
        f"{each['id']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in results["violations"]
        if each["impact"] in SERIOUS
    ]
