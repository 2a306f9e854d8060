"""Which GPUs have no arithmetic in bfloat16 is known from their capability or their name."""

from dataclasses import replace

import pytest

from profkit.engine.context import Context
from profkit.engine.device_support import lacks_bfloat16
from profkit.model.trace import NO_TRACE, DeviceInfo


@pytest.mark.parametrize(
    ("name", "capability", "lacks"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), True),
        ("Tesla T4", (7, 5), True),
        ("NVIDIA A100-SXM4-80GB", (8, 0), False),
        ("NVIDIA H200", (9, 0), False),
        ("", (7, 5), True),
        ("", None, False),
        ("Tesla V100-SXM2-16GB", None, True),
        ("Tesla T4", None, True),
        ("NVIDIA GeForce RTX 2080 Ti", None, True),
        ("NVIDIA GeForce GTX 1080", None, True),
        ("NVIDIA TITAN RTX", None, True),
        ("Quadro RTX 6000", None, True),
        ("NVIDIA GeForce RTX 3090", None, False),
        ("NVIDIA RTX A6000", None, False),
        ("NVIDIA RTX 6000 Ada Generation", None, False),
        ("NVIDIA L4", None, False),
        ("AMD Instinct MI300X", None, False),
    ],
)
def test_gpus_before_ampere_have_no_bfloat16(
    name: str,
    capability: tuple[int, int] | None,
    lacks: bool,  # noqa: FBT001  (a parameter of the test)
) -> None:
    device = DeviceInfo(index=0, name=name, compute_capability=capability)
    trace = replace(NO_TRACE, path="t.json", devices={0: device})
    assert lacks_bfloat16(Context(trace)) is lacks
