"""The keys and names of Kineto's JSON that several modules read; ``schema`` has the keys of events.

Source: ``libkineto/src/output_json.cpp``, and the Trace Event Format of Chromium.
"""

from typing import Final

SCHEMA_VERSION: Final = "schemaVersion"
TRACE_NAME: Final = "traceName"
TIME_UNIT: Final = "displayTimeUnit"
BASE_TIME: Final = "baseTimeNanoseconds"
DEVICES: Final = "deviceProperties"
DISTRIBUTED: Final = "distributedInfo"
EVENTS: Final = "traceEvents"

PROFKIT: Final = "profkit"
"""The key of what profkit records about the program, and the category of events that it adds for
viewers: findings, counters, gaps."""

PROCESS_NAME: Final = "process_name"
THREAD_NAME: Final = "thread_name"
PROCESS_LABELS: Final = "process_labels"
PROCESS_ORDER: Final = "process_sort_index"
THREAD_ORDER: Final = "thread_sort_index"

FLAGS: Final = {
    "stacks": "with_stack",
    "shapes": "record_shapes",
    "memory": "profile_memory",
    "modules": "with_modules",
    "flops": "with_flops",
}
"""The keys of the profiler's options, by their names in ``RecordedWith``."""


def quote(key: str) -> bytes:
    """Return a key as the text of a trace has it."""
    return f'"{key}"'.encode()
