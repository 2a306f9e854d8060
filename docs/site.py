"""Collects the Markdown pages of the repository for the documentation site.

The pages keep their places, so that a link works both in the repository and on the site; a link to
a file that is no page leads to the repository. ``README.md`` becomes the site's first page.

Run: ``python docs/site.py build/site-pages``, then ``mkdocs build``; ``make site`` does both.
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
REPOSITORY: Final = "https://github.com/profkit/profkit/blob/main/"
PAGES: Final = (
    "*.md", "docs/*.md", "docs/tutorials/*.md", "docs/reference/**/*.md", "examples/**/*.md",
    "traces/README.md",
)  # fmt: skip
IMAGES: Final = "docs/images/*.[ps][nv]g"
HOME: Final = ("README.md", "index.md")
_LINK: Final = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def pages() -> dict[str, str]:
    """The site's pages: each path below the site's root, and its Markdown."""
    sources = {
        path.relative_to(ROOT).as_posix()
        for pattern in PAGES
        for path in ROOT.glob(pattern)
        if path.is_file()
    }
    return {
        target(source): _linked((ROOT / source).read_text(encoding="utf-8"), source, sources)
        for source in sorted(sources)
    }


def target(source: str) -> str:
    """Where a page is on the site."""
    return HOME[1] if source == HOME[0] else source


def _linked(text: str, source: str, sources: set[str]) -> str:
    """A page's text with links to the site's pages, and to the repository for other files."""

    def linked(match: "re.Match[str]") -> str:
        link = match[2]
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if (ROOT / file).is_dir() and f"{file}/README.md" in sources:
            file = f"{file}/README.md"
        if file in sources:
            start = posixpath.dirname(target(source)) or "."
            return f"{match[1]}{posixpath.relpath(target(file), start)}{match[3]}"
        if (ROOT / file).match(IMAGES):
            return match[0]
        return f"{match[1]}{REPOSITORY}{file}{match[3]}"

    return _LINK.sub(linked, text)


def main(folder: Path) -> None:
    """Write the pages and images into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in pages().items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    for image in ROOT.glob(IMAGES):
        place = folder / image.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
