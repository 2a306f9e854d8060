"""Programs of ``examples/leaks`` with the change that ends their leak."""

import json
from pathlib import Path
from typing import Any, Final

PROGRAMS: Final = Path(__file__).parents[2] / "examples" / "leaks"
EXPECTED: Final[dict[str, Any]] = json.loads((PROGRAMS / "expected.json").read_text())
LEAKS: Final[dict[str, dict[str, Any]]] = EXPECTED["leaks"]


def write_cured(name: str, folder: Path) -> Path:
    """Write a leaking program with its cure, and return its path.

    Args:
        name: The program. Its cure is a list of texts, each followed by what replaces it.
    """
    program = (PROGRAMS / f"{name}.py").read_text()
    texts = LEAKS[name]["cure"]
    for before, after in zip(texts[::2], texts[1::2], strict=True):
        assert program.count(before) == 1, before
        program = program.replace(before, after)

    cured = folder / f"{name}.py"
    cured.write_text(program)
    return cured
