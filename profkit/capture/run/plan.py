"""What ``profkit run`` records of a program: settings that are made before torch is imported."""

from profkit.capture.recording.options import Options
from profkit.capture.recording.schedule import Schedule
from profkit.dataclass import dataclass


@dataclass(frozen=True)
class Plan:
    """What to record of a program.

    Attributes:
        name: The name of the trace.
        options: What to record.
        schedule: Which steps to record.
        record_trace: Whether steps are recorded.
        monitor_memory: Whether memory is monitored over all steps.
        lines_of_python: Whether ``tracemalloc`` records allocation sites of Python objects.
    """

    name: str
    options: Options
    schedule: Schedule
    record_trace: bool = True
    monitor_memory: bool = True
    lines_of_python: bool = False
