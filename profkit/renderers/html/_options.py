"""Options of the page, in a module that loads no templates."""

from profkit.dataclass import dataclass
from profkit.present.renderer import RecordingOptions


@dataclass(frozen=True)
class Options(RecordingOptions):
    """Timeline, flame graphs, memory over time and some tables need the recording.

    Attributes:
        source: Whether the page includes source lines of the user's code, where this machine has
            the files.
    """

    source: bool = True
