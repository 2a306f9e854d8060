"""What the builder of watched memory writes is what a reader reads, and adds up."""

from pathlib import Path

import pytest

from profkit.model.live_memory import Leak
from profkit.readers.open import load
from profkit.testing import LiveBuilder

KIB = 1024


def growing(**changes: object) -> LiveBuilder:
    facts: dict[str, object] = {
        "kind": "tensors", "device": "cpu", "per_step_bytes": 64 * KIB, "bytes": 64 * KIB * 100,
        "n": 100, "first_step": 101, "last_step": 200,
    }  # fmt: skip
    return LiveBuilder(base_bytes=1 << 20).add(Leak(**(facts | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["t.memory.json", "t.memory.json.gz"])
def test_it_is_read_as_it_was_built(tmp_path: Path, name: str) -> None:
    builder = growing()
    assert load(builder.write(tmp_path / name)) == builder.build()


def test_the_figures_follow_from_what_grows() -> None:
    looks = growing().build().samples
    assert (looks[0].step, looks[-1].step) == (1, 200)
    assert [look.step for look in looks] == sorted({look.step for look in looks})
    assert looks[0].tensor_bytes == {"cpu": 1 << 20}
    assert looks[-1].tensor_bytes == {"cpu": (1 << 20) + 100 * 64 * KIB}
    assert looks[-1].host_rss_bytes == (1 << 20) + 100 * 64 * KIB


def test_what_grows_on_a_device_takes_no_host_memory() -> None:
    last = growing(device="cuda:0").build().samples[-1]
    assert last.host_rss_bytes == 1 << 20
    assert last.allocated_bytes == 100 * 64 * KIB


def test_a_graph_is_kept_for_backward() -> None:
    assert growing(kind="graph").build().samples[-1].graph_bytes == 100 * 64 * KIB


def test_the_largest_growth_comes_first() -> None:
    builder = growing().add(Leak("host", "host", 1 << 20, 1 << 30, 3, 1, 200))
    assert [growth.kind for growth in builder.build().leaks] == ["host", "tensors"]


def test_steps_may_be_too_few_to_judge() -> None:
    assert LiveBuilder(n_steps=3, n_evaluated_steps=0).build().n_evaluated_steps == 0
    assert LiveBuilder(n_steps=3).build().n_evaluated_steps == 3
