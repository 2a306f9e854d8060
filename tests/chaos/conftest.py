"""Programs that tests start take Ctrl-C, however the tests themselves were started."""

import pytest

from tests.chaos.process import let_interrupts_through


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> None:
    """Let SIGINT reach the programs."""
    let_interrupts_through()
