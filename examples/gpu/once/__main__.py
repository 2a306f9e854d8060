"""Runs everything worth knowing on a GPU that is there for minutes only, and packs it in one file.

It needs the repository and the packages of profkit, and no network. Each part has its time limit;
the file is written again after each, so that whatever ends it early leaves the parts before.
``examples/gpu/once/unpack.py`` takes the file, on any machine.

Run: ``python -m examples.gpu.once --minutes 8 --out FOLDER [--device cpu] [PART …]``
"""

import argparse
import contextlib
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

import torch

from examples.gpu.once.command import Runner
from examples.gpu.once.parts import PARTS, Setting
from examples.gpu.recording.rows import settings

TAR: Final = "gpu-once.tar"
LARGEST_BYTES: Final = 15 << 20
PACKING_S: Final = 10.0
"""What packing takes at the end."""


def main() -> int:
    """Run the parts.

    Returns:
        0, or 1 without a GPU.
    """
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=8.0, help="never runs longer (8)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the packed file")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if options.device != "cpu" and not torch.cuda.is_available():
        print("There is no CUDA GPU here that torch can use.", file=sys.stderr)
        return 1
    # A shell that starts this in the background has it ignore Ctrl-C, and with it all programs.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    ends_s = time.monotonic() + options.minutes * 60 - PACKING_S
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder, scratch = Path(temporary, "kept"), Path(temporary, "scratch")
        scratch.mkdir()
        runner = Runner(scratch, folder / "logs", {**settings(), "PYTHONDONTWRITEBYTECODE": ""})
        for part in PARTS:
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or (options.parts and part.name not in options.parts):
                continue
            limit_s = min(part.limit_s, left_s)
            print(f"{part.name}: at most {limit_s:.0f} s", flush=True)
            began_s = time.monotonic()
            part.run(Setting(runner, options.device, folder, scratch, began_s + limit_s))
            print(f"{part.name}: {time.monotonic() - began_s:.1f} s", flush=True)
            pack(folder, options.out / TAR)
    return 0


def pack(folder: Path, target: Path) -> None:
    """Write a folder into one file, without the largest of its files if it would be too large.

    Args:
        folder: What is packed. Recordings are compressed already.
        target: The file, replaced at once.
    """
    files = sorted(
        (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts),
        key=lambda path: path.stat().st_size,
    )
    left_out = []
    while sum(path.stat().st_size + 1024 for path in files) > LARGEST_BYTES:
        left_out.append(f"{files[-1].relative_to(folder)} {files.pop().stat().st_size}")
    (folder / "left_out.txt").write_text("".join(f"{line}\n" for line in left_out))
    partial = target.with_suffix(".partial")

    with tarfile.open(partial, "w") as tar:
        for path in [*files, folder / "left_out.txt"]:
            with contextlib.suppress(FileNotFoundError):
                tar.add(path, path.relative_to(folder))

    shutil.move(partial, target)
    print(f"packed: {len(files)} files, {target.stat().st_size / 2**20:.1f} MiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
