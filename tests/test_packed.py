"""Values that wait in memory as bytes."""

import pickle

import numpy as np

from profkit.packed import Packed


def test_a_value_comes_out_as_it_went_in_and_can_be_changed() -> None:
    packed = Packed(["a", "b"])
    packed.value.append("c")
    assert packed.value == ["a", "b"]
    assert Packed(np.arange(5)).value.tolist() == [0, 1, 2, 3, 4]


def test_what_is_sent_between_processes_stays_packed() -> None:
    value = [f"all-reduce {number % 7}" for number in range(10_000)]
    packed = Packed(value)
    sent = pickle.dumps(packed)
    assert len(sent) < len(pickle.dumps(value)) / 5
    assert pickle.loads(sent).value == value  # noqa: S301  (our own)
