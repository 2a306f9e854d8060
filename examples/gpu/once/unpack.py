"""Takes what ``python -m examples.gpu.once`` has packed, and writes what the project keeps of it.

The recordings and their rows go to ``traces/gpu``, beside those that are there already, with the
reports that profkit now gives on them; ``docs/truth.md`` is written again from all of them. The
rest, such as the output of tests, is left in a folder to be read.

Run: ``python -m examples.gpu.once.unpack gpu-once.tar [--folder build/gpu-once]``
"""

import argparse
import shutil
import sys
import tarfile
from pathlib import Path

from examples.gpu import record
from examples.gpu.recording.rows import ROOT, Rows


def main() -> int:
    """Unpack, and write the table.

    Returns:
        0.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tar", type=Path, help="the packed file")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu-once")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    with tarfile.open(options.tar) as tar:
        tar.extractall(options.folder, filter="data")
    merge(Rows(options.folder / "recordings"), Rows(record.OUT))
    print(f"the rest is in {options.folder}")
    return record.main(["--only-table"])


def merge(come: Rows, kept: Rows) -> None:
    """Take rows and recordings, in place of those of the same runs.

    Args:
        come: What was packed.
        kept: What the project keeps.
    """
    for name, run in come.runs.items():
        if (come.folder / name).is_dir():
            shutil.rmtree(kept.folder / name, ignore_errors=True)
            shutil.copytree(come.folder / name, kept.folder / name)
        kept.put(name, run)
    if come.overhead:
        kept.put_overhead(come.overhead)


if __name__ == "__main__":
    sys.exit(main())
