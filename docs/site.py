"""Collect the Markdown pages of the repository for the documentation site.

The pages keep their places, so that a link works both in the repository and on the site. A link to
any other file leads to the repository if the variable ``PROFKIT_REPOSITORY`` has its address, as in
the workflow that publishes the site, and is text alone if not. ``docs/index.md`` is the first page.

Run: ``python docs/site.py build/site-pages``, then ``mkdocs build``; ``make site`` does both.
"""

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
REPOSITORY: Final = os.environ.get("PROFKIT_REPOSITORY", "")
"""The address below which the files of the repository are, with a slash at its end."""
PAGES: Final = (
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/tutorials/*.md",
    "docs/recordings/*.md", "docs/reference/**/*.md", "examples/**/*.md", "traces/README.md",
)  # fmt: skip
IMAGES: Final = "docs/images/*.[ps][nv]g"
ASSETS: Final = ("docs/iframe-worker.js", "docs/site.css")
HOME: Final = ("docs/index.md", "index.md")
_LINK: Final = re.compile(
    r"(?P<text>\[(?:[^][]|\[[^]]*\])*\])\((?P<to>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path below the site's root."""
    sources = {
        path.relative_to(ROOT).as_posix()
        for pattern in PAGES
        for path in ROOT.glob(pattern)
        if path.is_file()
    }
    return {
        target(source): _with_links_of_the_site(
            (ROOT / source).read_text(encoding="utf-8"), source, sources
        )
        for source in sorted(sources)
    }


def target(source: str) -> str:
    """Return the path of a page on the site."""
    return HOME[1] if source == HOME[0] else source


def _with_links_of_the_site(text: str, source: str, sources: set[str]) -> str:
    """Return a page's text with links to pages of the site, and to the repository for the rest."""

    def rewrite(match: "re.Match[str]") -> str:
        link, anchor = match["to"], match["anchor"] or ""
        if "://" in link or link.startswith("mailto:"):
            return match[0]

        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if (ROOT / file).is_dir() and f"{file}/README.md" in sources:
            file = f"{file}/README.md"

        if file in sources or (ROOT / file).match(IMAGES):
            start = posixpath.dirname(target(source)) or "."
            return f"{match['text']}({posixpath.relpath(target(file), start)}{anchor})"
        if REPOSITORY:
            return f"{match['text']}({REPOSITORY}{file}{anchor})"
        return match["text"][1:-1]

    return _LINK.sub(rewrite, text)


def main(folder: Path) -> None:
    """Write the pages, images and assets into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in pages().items():
        page = folder / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")

    copies = {path: path.relative_to(ROOT) for path in ROOT.glob(IMAGES)}
    copies |= {ROOT / asset: Path("assets", Path(asset).name) for asset in ASSETS}
    for source, copy in copies.items():
        (folder / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / copy)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
