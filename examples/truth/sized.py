"""Runs a program of ``examples/host``, or of ``programs`` beside it, with steps of other sizes.

Steps of a test take a millisecond, of which recording is a large part.

Run: ``python examples/truth/sized.py NAME [--cured] [--steps N] [CONSTANT=VALUE…]``
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Final

FOLDERS: Final = (Path(__file__).parents[1] / "host", Path(__file__).parent / "programs")


def find_program(name: str) -> Path:
    """Return the path of a program."""
    return next(path for folder in FOLDERS if (path := folder / f"{name}.py").is_file())


def main() -> None:
    """Read the arguments, and run the steps."""
    parser = argparse.ArgumentParser(description="Run a program with other sizes.")
    parser.add_argument("name")
    parser.add_argument("sizes", nargs="*", metavar="CONSTANT=VALUE")
    parser.add_argument("--cured", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_intermixed_args()

    spec = importlib.util.spec_from_file_location(options.name, find_program(options.name))
    if spec is None or spec.loader is None:
        raise ImportError(options.name)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    for size in options.sizes:
        constant, _, value = size.partition("=")
        setattr(program, constant, int(value))

    run_step = program.prepare(cured=options.cured)
    for _ in range(options.steps):
        run_step()


if __name__ == "__main__":
    main()
