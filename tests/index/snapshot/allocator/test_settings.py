"""Settings are read as torch means them, and lengths rounded as it rounds them."""

import pytest

from profkit.index.snapshot.allocator.settings import (
    AllocatorSettings,
    parse_settings,
    segment_bytes,
)
from profkit.testing import reference_allocator
from profkit.testing.reference_allocator import MIB


@pytest.mark.parametrize(
    ("asked", "given"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_a_request_is_rounded_to_blocks_of_512_bytes(asked: int, given: int) -> None:
    assert AllocatorSettings().round(asked) == given


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        # The example of torch's own comment: between 1024 and 2048 there are 1280, 1536, 1792.
        (1200, 1536),
        (2200, 2560),
        (4096, 4096),
        # Up to 4 blocks of 512 bytes lengths are too short to be divided.
        (1000, 1024),
        (5 * MIB, 5 * MIB),
        (5 * MIB + 1, 6 * MIB),
        (9 * MIB, 10 * MIB),
    ],
)
def test_sizes_can_be_rounded_to_divisions_of_powers_of_two(asked: int, given: int) -> None:
    settings = AllocatorSettings(divisions=(4,) * 16)
    assert settings.round(asked) == (1536 if asked == 1200 else given)


def test_each_power_of_two_can_have_its_own_divisions() -> None:
    settings = AllocatorSettings(divisions=(0, 0, 8, 1, 2, *([0] * 11)))
    assert settings.round(3 * MIB + 1) == 3 * MIB + 512
    assert settings.round(4 * MIB + 1) == 4 * MIB + MIB // 2
    assert settings.round(9 * MIB + 1) == 9 * MIB + 512
    assert settings.round(17 * MIB) == 24 * MIB
    # The last one is for all that is longer.
    beyond = AllocatorSettings(divisions=(*([0] * 15), 2))
    assert beyond.round((1 << 40) + 1) == (1 << 40) + (1 << 39)


def test_the_settings_of_a_snapshot_are_parsed() -> None:
    settings = parse_settings(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, max_non_split_rounding_mb:40,"
            "large_segment_size_mb:32,roundup_power2_divisions:[4:8,>:2]",
            "max_split_size": 64 * MIB,
            "garbage_collection_threshold": 0.8,
            "expandable_segments": True,
            "roundup_power2_divisions": "1:0 2:0 4:8 8:2 16:2",
        }
    )

    assert settings == AllocatorSettings(
        max_split_bytes=64 * MIB,
        expandable=True,
        max_rest_bytes=40 * MIB,
        large_segment_bytes=32 * MIB,
        divisions=(0, 0, 8, 2, 2, *([0] * 11)),
        garbage_threshold=0.8,
        others=(
            "max_non_split_rounding_mb:40",
            "large_segment_size_mb:32",
            "roundup_power2_divisions:[4:8,>:2]",
        ),
    )


@pytest.mark.parametrize(
    "value",
    [-1, 0, (1 << 63) - 1, (1 << 64) - 1, "none"],
    ids=["int64", "zero", "max", "size_t", "text"],
)
def test_no_limit_has_several_encodings(value: int | str) -> None:
    settings = parse_settings({"max_split_size": value, "roundup_power2_divisions": "1:0 2:1"})
    assert settings == AllocatorSettings()


def test_snapshots_of_other_devices_call_the_variable_by_its_general_name() -> None:
    settings = parse_settings({"PYTORCH_ALLOC_CONF": "large_segment_size_mb:32"})
    assert settings.large_segment_bytes == 32 * MIB


def test_a_setting_that_is_none_is_left_out_of_what_is_advised() -> None:
    written = {"PYTORCH_CUDA_ALLOC_CONF": "backend:native,$(reboot):1,`x`,expandable_segments:True"}
    assert parse_settings(written).others == ("backend:native",)
    assert parse_settings(written).alloc_conf == "backend:native"


def test_without_settings_torchs_defaults_apply() -> None:
    assert parse_settings({}) == AllocatorSettings()


@pytest.mark.parametrize(
    "n_bytes", [512, MIB, MIB + 512, 9 * MIB, 10 * MIB, 10 * MIB + 512, 4_202_692_608]
)
def test_segment_sizes_agree_with_the_reference_allocator(n_bytes: int) -> None:
    assert segment_bytes(n_bytes) == reference_allocator.segment_bytes(n_bytes)


def test_the_size_of_shared_segments_can_be_set() -> None:
    assert segment_bytes(3 * MIB, 64 * MIB) == 64 * MIB
    assert segment_bytes(30 * MIB, 64 * MIB) == 30 * MIB
    assert segment_bytes(MIB, 64 * MIB) == 2 * MIB
