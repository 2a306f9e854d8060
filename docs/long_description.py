"""The README as the description of the package on an index, where no other file is.

Pictures and the list of pages are left out, and a link to a file becomes its text. The build calls
this hook; see ``[tool.hatch.metadata.hooks.custom]`` in pyproject.toml.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE: Final = re.compile(r"^!\[[^]]*\]\([^)]*\)\n\n", re.MULTILINE)
_LINK_TO_FILE: Final = re.compile(r"\[([^]]*)\]\((?!\w+:)[^)]*\)")

_WHERE_PAGES_ARE: Final = "The pages of the documentation are in the source archive, in `docs`.\n"


class ReadmeHook(MetadataHookInterface):
    """Sets the description in the metadata of the wheel and of the source archive."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, which pyproject.toml declares as dynamic."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_files(text)}


def without_files(text: str) -> str:
    """Return the README's text without pictures, without the list of pages, and without links."""
    before, _, _ = text.partition("## Documentation\n")
    return _LINK_TO_FILE.sub(r"\1", _PICTURE.sub("", before)) + _WHERE_PAGES_ARE
