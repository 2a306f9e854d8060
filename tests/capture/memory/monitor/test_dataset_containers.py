"""What a data set adds to in its workers is read in its source."""

import functools
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, zeros
from torch.utils.data import DataLoader, Dataset, Subset

from profkit.capture.memory.monitor.dataset_containers import (
    find_addition,
    note_iterator,
    read_additions,
)

SOURCE = """\
class Pictures(Dataset):
    def __init__(self):
        self.paths.append(1)
        self.cache = {{}}
    def __getitem__(self, index):
        {line}
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("self.seen.append(index)", [("seen", False)]),
        ("self.cache[index] = load(index)", [("cache", True)]),
        ("self.cache[index, self.epoch] = load(index)", [("cache", False)]),
        ("self.cache.setdefault(self.paths[index], 1)", [("cache", False)]),
        ("self.seen.append(index); self.seen.pop(0)", []),
        ("self.seen = []; self.seen.append(index)", []),
        ("self.cache[index] = 1; del self.cache[index - 1]", []),
        ("seen.append(index)", []),
        ("return self.cache[index]", []),
        ("return self.cache[index", []),
    ],
)
def test_what_is_added_outside_of_init_and_never_removed_is_found(
    tmp_path: Path, line: str, expected: list[tuple[str, bool]]
) -> None:
    file = tmp_path / "data.py"
    file.write_text(SOURCE.format(line=line))
    found = read_additions(str(file), "Pictures")
    assert [(name, is_key) for name, _, is_key in found] == expected
    assert all(place == (str(file), 6, "__getitem__") for _, place, _ in found)


class Kept(Dataset[Tensor]):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        self.seen.append(zeros(2))
        return self.seen[-1]


class Cached(Kept):
    def __getitem__(self, index: int) -> Tensor:
        return self.read(index)

    @functools.cache  # noqa: B019
    def read(self, index: int) -> Tensor:
        return zeros(2) + index


class Plain(Dataset[Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        return zeros(2) + index


class OnlyCached(Plain):
    @functools.cache  # noqa: B019
    def read(self, index: int) -> Tensor:
        return zeros(2) + index


def iterate(dataset: Dataset[Any]) -> Any:  # noqa: ANN401
    batches = iter(DataLoader(dataset, batch_size=4, num_workers=1))
    note_iterator(batches)
    next(batches)
    return batches


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_data_set_of_a_loader_that_runs_is_looked_at() -> None:
    assert find_addition() is None

    batches = iterate(Subset(Kept(), [*range(32)]))
    addition = find_addition()
    assert addition is not None
    assert (addition.name, addition.container, addition.is_by_sample) == (
        "Kept.seen",
        "list",
        False,
    )
    assert addition.place[0] == __file__
    assert addition.place[2] == "__getitem__"
    del batches
    assert find_addition() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_cached_method_is_found_and_several_containers_are_no_answer() -> None:
    batches = iterate(Plain())
    assert find_addition() is None

    batches = iterate(Cached())
    addition = find_addition()
    assert addition is None

    batches = iterate(OnlyCached())
    addition = find_addition()
    assert addition is not None
    assert addition.name == "OnlyCached.read"
    del batches
