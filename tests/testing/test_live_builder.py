"""LiveBuilder writes consistent memory records that the reader accepts."""

from pathlib import Path

import pytest

from profkit.model.live_memory import Leak
from profkit.readers.open import load
from profkit.testing import LiveBuilder

KIB = 1024


def leaking(**changes: object) -> LiveBuilder:
    facts: dict[str, object] = {
        "kind": "tensors",
        "device": "cpu",
        "per_step_bytes": 64 * KIB,
        "bytes": 64 * KIB * 100,
        "n": 100,
        "first_step": 101,
        "last_step": 200,
    }
    return LiveBuilder(base_bytes=1 << 20).add(Leak(**(facts | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["t.memory.json", "t.memory.json.gz"])
def test_a_record_is_read_back_as_built(tmp_path: Path, name: str) -> None:
    builder = leaking()
    assert load(builder.write(tmp_path / name)) == builder.build()


def test_samples_follow_from_the_leaks() -> None:
    samples = leaking().build().samples
    assert (samples[0].step, samples[-1].step) == (1, 200)
    assert [sample.step for sample in samples] == sorted({sample.step for sample in samples})
    assert samples[0].tensor_bytes == {"cpu": 1 << 20}
    assert samples[-1].tensor_bytes == {"cpu": (1 << 20) + 100 * 64 * KIB}
    assert samples[-1].host_rss_bytes == (1 << 20) + 100 * 64 * KIB


def test_a_leak_on_a_device_does_not_grow_resident_memory() -> None:
    last = leaking(device="cuda:0").build().samples[-1]
    assert last.host_rss_bytes == 1 << 20
    assert last.allocated_bytes == 100 * 64 * KIB


def test_a_leaked_graph_grows_graph_bytes() -> None:
    assert leaking(kind="graph").build().samples[-1].graph_bytes == 100 * 64 * KIB


def test_the_largest_leak_comes_first() -> None:
    builder = leaking().add(Leak("host", "host", 1 << 20, 1 << 30, 3, 1, 200))
    assert [leak.kind for leak in builder.build().leaks] == ["host", "tensors"]


def test_the_number_of_evaluated_steps_defaults_to_all() -> None:
    assert LiveBuilder(n_steps=3, n_evaluated_steps=0).build().n_evaluated_steps == 0
    assert LiveBuilder(n_steps=3).build().n_evaluated_steps == 3
