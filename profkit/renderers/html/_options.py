"""What a reader of the page can choose; apart, so that asking for it loads no templates."""

from dataclasses import dataclass

from profkit.present.renderer import LoadedRecording


@dataclass(frozen=True)
class Options:
    """What a reader of the page can choose.

    Attributes:
        recording: What the report was made from, for the timeline, the flame graphs and memory
            over time; without it the page has what the report has.
        base: The folder to which paths are shown relative; empty shows them whole.
        source: Whether lines of the user's code come into the page, where this machine has them.
    """

    recording: LoadedRecording | None = None
    base: str = ""
    source: bool = True
