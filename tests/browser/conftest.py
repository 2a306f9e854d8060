"""A real browser without a network, and what it must not say."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.pages import Heard, Opener

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# Playwright drives the browser of the system and never fetches one of its own.
os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")

PATIENCE_MS = 30_000
"""A busy machine paints a frame in seconds; what is right in the end is right."""
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on PATH: {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        # In a container root has no sandbox of its own to put the browser in.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens pages; afterwards none of them has complained, or asked for anything else."""
    heard: list[Heard] = []
    contexts = []

    def _open(
        url: str | Path,
        *,
        allowed: tuple[str, ...] = (),
        expected: tuple[str, ...] = (),
        **settings: Any,  # noqa: ANN401  (playwright's)
    ) -> Page:
        address = url.as_uri() if isinstance(url, Path) else url
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        ear = Heard(context.new_page(), allowed or (address,), expected)
        heard.append(ear)
        ear.listen()
        ear.page.goto(address)
        return ear.page

    yield _open
    for context in contexts:
        context.close()
    assert [ear.complaints for ear in heard if ear.complaints] == []
    assert [ear.requests for ear in heard if ear.requests] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The script with axe-core's rules of accessibility."""
    found = sorted(ROOT.glob("build/axe-*/package/axe.min.js"))
    if not found:
        pytest.skip("axe-core is not there: `make install` fetches it where there is npm")
    return found[-1].read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def web_components() -> bytes:
    """What viewers of the existing plugin ask the internet for."""
    found = ROOT / "build" / "webcomponents" / "package" / "webcomponents.min.js"
    if not found.exists():
        pytest.skip("webcomponents.js is not there: `make install` fetches it where there is npm")
    return found.read_bytes()
