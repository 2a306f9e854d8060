"""One finding with all that is known of it.

Times are integer nanoseconds from the trace's start, sizes integer bytes.
"""

from typing import Final

from profkit.dataclass import dataclass
from profkit.model.finding import Finding
from profkit.model.location import Frame, Location, SourceSnippet
from profkit.model.renderable import Renderable

SCHEMA: Final = "profkit.explanation/1"


@dataclass(frozen=True)
class EventRow:
    """An event of a trace.

    Attributes:
        id: Its position in the file's ``traceEvents``.
        name: Its name.
        category: Its kind, such as ``op``, ``kernel``, ``runtime``, ``python``.
        start_ns: When it starts.
        dur_ns: Its duration.
        thread: The thread, or of device work the device and stream.
        step: The name of the step in which it starts, or None.
        location: The source line, or None.
    """

    id: int
    name: str
    category: str
    start_ns: int
    dur_ns: int
    thread: str
    step: str | None = None
    location: Location | None = None


@dataclass(frozen=True)
class RuleSection:
    """A section of a rule's page, such as ``How to fix it``.

    Attributes:
        title: Its heading.
        text: Paragraphs and code, with blank lines between them; code is indented.
    """

    title: str
    text: str


@dataclass(frozen=True)
class Explanation(Renderable):
    """A finding with its events, its source line and the page of its rule.

    Attributes:
        profkit: profkit's version.
        path: The recording.
        id: Names the finding in its report.
        number: Its number in the report, from 1: the highest cost first.
        finding: The finding.
        cost: Its cost as text; empty if unknown.
        events: Events that it is based on, in the order of the file; at most 20. Empty without a
            trace, as with a saved report.
        calls: The Python calls that lead to the first of these events, outermost first.
        source: The lines around its first source line, or None if this machine does not have them.
        rule: The page of its rule.
        change: What ``profkit what-if --remove`` takes to predict the steps without it, or None if
            a replay cannot.
        schema: Name and version of this schema.
    """

    profkit: str
    path: str
    id: str
    number: int
    finding: Finding
    cost: str = ""
    events: tuple[EventRow, ...] = ()
    calls: tuple[Frame, ...] = ()
    source: SourceSnippet | None = None
    rule: tuple[RuleSection, ...] = ()
    change: str | None = None
    schema: str = SCHEMA
