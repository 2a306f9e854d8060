"""The program that reads one share of a trace: ``python -m profkit.readers.kineto.worker``.

It writes its :class:`~profkit.readers.kineto.parallel.PartialRead` to stdout, for the process that started
it and for nobody else.
"""

import pickle
import sys
from pathlib import Path

from profkit.readers.kineto.parallel import read_part
from profkit.readers.kineto.split import Text
from profkit.readers.stages import Stages
from profkit.readers.stream import Chunks, open_plain


def main(path: str, limit: str, number: str, n_processes: str) -> None:
    """Read a share.

    Args:
        path: The trace.
        limit: How many bytes it may have unpacked.
        number: Which share, from 0.
        n_processes: Of how many.
    """
    with open_plain(Path(path)) as stream:
        chunks = Chunks(stream, int(limit))
        reading = read_part(chunks, Text(), Stages(), int(number), int(n_processes))
    if not reading.clean:
        reading.share.clear()
    pickle.dump(reading, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(*sys.argv[1:])
