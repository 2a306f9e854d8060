"""The documentation site: every link leads somewhere, and the site works from a folder, offline."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import expect, sync_playwright

from docs import site as collector
from tests.docs.blocks import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REPOSITORY = "https://forge.example/blob/main/"
PATIENCE_MS = 30_000
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADING and given.get("rel") not in {"canonical", "edit"}:
            self.loaded.append(given.get(LOADING[tag], ""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    for name in ("docs_dir: build/site-pages", "site_dir: build/site"):
        assert name in settings
        kind = name.partition(":")[0]
        settings = re.sub(
            rf"^{re.escape(name)}$", f"{kind}: {folder / kind}", settings, flags=re.MULTILINE
        )

    (folder / "mkdocs.yml").write_text(settings, encoding="utf-8")
    python = sys.executable
    variables = {**os.environ, "PROFKIT_REPOSITORY": REPOSITORY}
    command = [python, "docs/site.py", str(folder / "docs_dir")]
    subprocess.run(command, cwd=ROOT, env=variables, check=True)
    command = [python, "-m", "mkdocs", "build", "--quiet", "--strict"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "site_dir"


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[Path, Page]:
    return {
        path.relative_to(folder): Page(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
        if path.name != "404.html"
    }


def test_every_page_of_the_repository_is_on_the_site(site: dict[Path, Page]) -> None:
    names = {path.as_posix() for path in site}
    assert {"index.html", "docs/guide.html", "docs/reference/rules/index.html"} <= names


def test_every_link_within_the_site_leads_to_a_page_and_an_anchor(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links:
            address, anchor = urldefrag(unquote(link))
            if "://" in address or address.startswith("mailto:"):
                continue
            there = Path(*_normal(path.parent / address)) if address else path
            target = site.get(there) or site.get(there / "index.html")
            if target is None or (anchor and anchor not in target.anchors):
                broken.append(f"{path}: {link}")
    assert not broken


def test_every_link_into_the_repository_names_a_file(site: dict[Path, Page]) -> None:
    links = {link for page in site.values() for link in page.links if link.startswith(REPOSITORY)}
    files = {urldefrag(link.removeprefix(REPOSITORY))[0] for link in links}
    assert "examples/evaluation_with_graph.py" in files
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_without_an_address_a_link_into_the_repository_is_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "REPOSITORY", "")
    links = {link for text in collector.pages().values() for link in collector._LINK.findall(text)}
    outside = {to for _, to, _ in links if not to.startswith("http")}
    assert not [to for to in outside if not to.endswith((".md", ".png", ".svg"))]


def test_no_page_loads_anything_from_another_server(site: dict[Path, Page]) -> None:
    assert not {file for page in site.values() for file in page.loaded if "://" in file}


def test_the_search_of_a_site_in_a_folder_asks_no_server(folder: Path) -> None:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser on PATH: {', '.join(BROWSERS)}")
    requests: list[str] = []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: requests.append(request.url))

        page.goto((folder / "index.html").as_uri())
        page.evaluate("document.getElementById('__search').click()")
        page.locator("input[name=query]").press_sequentially("retained-graph")
        results = page.locator(".md-search-result__link").filter(has_text="retained-graph")
        expect(results.first).to_be_attached(timeout=PATIENCE_MS)
        started.close()
    assert requests
    assert not [url for url in requests if not url.startswith(("file:", "about:", "data:"))]


def _normal(path: Path) -> list[str]:
    """Return a relative path's parts without ``..``."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return parts
