"""A browser without network access, and checks of its console and requests."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.pages import Opener, PageLog

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# Playwright drives the browser of the system and never fetches one of its own.
os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")

PATIENCE_MS = 30_000
"""A busy machine may take seconds for a frame."""
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next((executable for name in NAMES if (executable := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on PATH: {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        # Chromium has no sandbox for root in a container.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens pages; afterwards asserts that none logged an error or made another request."""
    logs: list[PageLog] = []
    contexts = []

    def _open(
        url: str | Path,
        *,
        allowed: tuple[str, ...] = (),
        expected: tuple[str, ...] = (),
        unfolded: bool = True,
        **settings: Any,  # noqa: ANN401  (playwright's)
    ) -> Page:
        address = url.as_uri() if isinstance(url, Path) else url
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        log = PageLog(context.new_page(), allowed or (address,), expected)
        logs.append(log)
        log.start()
        log.page.goto(address)
        if unfolded:
            log.page.evaluate(
                "for (const fold of document.querySelectorAll('details.fold')) fold.open = true"
            )
        return log.page

    yield _open
    for context in contexts:
        context.close()
    assert [log.errors for log in logs if log.errors] == []
    assert [log.requests for log in logs if log.requests] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the script of axe-core, a checker of accessibility."""
    axe_paths = sorted(ROOT.glob("build/axe-*/package/axe.min.js"))
    if not axe_paths:
        pytest.skip("axe-core is not installed: `make install` fetches it with npm")
    return axe_paths[-1].read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def web_components() -> bytes:
    """Return the script that torch-tb-profiler loads from the internet."""
    polyfill = ROOT / "build" / "webcomponents" / "package" / "webcomponents.min.js"
    if not polyfill.exists():
        pytest.skip("webcomponents.js is not installed: `make install` fetches it with npm")
    return polyfill.read_bytes()
