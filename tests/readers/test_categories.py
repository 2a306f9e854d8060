"""Categories of events: what each is, and which only a program on a device has."""

import gzip
import json
from pathlib import Path

import pytest

from profkit.model.events import DEVICE_WORK, Category
from profkit.readers.kineto.categories import CATEGORIES, needs_device

TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize("category", [*DEVICE_WORK, Category.RUNTIME, Category.DRIVER])
def test_what_a_device_does_needs_one(category: Category) -> None:
    written = [
        name for name, written_category in CATEGORIES.items() if written_category is category
    ]
    assert written
    assert all(map(needs_device, written))


def test_a_recording_of_a_cpu_has_no_category_that_needs_a_device() -> None:
    paths = sorted(TRACES.glob("iris_*/*.gz"))
    assert paths
    for path in paths:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        written = {event.get("cat", "") for event in events if event["ph"] == "X"}
        assert not {name for name in written if needs_device(name)}, path


def test_a_category_that_is_not_known_may_be_of_any_device() -> None:
    assert needs_device("npu_runtime")
    assert needs_device("nvtx")
    assert not needs_device("Operator")
