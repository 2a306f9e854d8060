"""Options of the page, in a module that loads no templates."""

from dataclasses import dataclass

from profkit.present.renderer import LoadedRecording


@dataclass(frozen=True)
class Options:
    """Options of the page.

    Attributes:
        recording: What the report was made from. Timeline, flame graphs, memory over time and the
            tables of modules and allocations need it.
        base: Paths are shown relative to this folder; empty shows them in full.
        source: Whether the page includes source lines of the user's code, where this machine has
            the files.
    """

    recording: LoadedRecording | None = None
    base: str = ""
    source: bool = True
