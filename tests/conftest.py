"""What all tests share: the gpu marker means what it says."""

from collections.abc import Iterable

import pytest


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none; torch is asked only if there are any."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
