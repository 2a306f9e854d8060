"""The program that unpickles a snapshot: ``python -m profkit.readers.snapshot.worker``.

It reads the pickle from stdin and writes an :class:`~profkit.readers.snapshot.worker_result.WorkerResult` to stdout,
for the process that started it and for nobody else.
"""

import gc
import os
import pickle
import sys

from profkit.readers.snapshot.restricted_unpickler import MemoryLimit
from profkit.readers.snapshot.worker_result import answer

if __name__ == "__main__":
    gc.disable()
    found = answer(sys.stdin.buffer, MemoryLimit().allow)
    pickle.dump(found, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()
    # At once: there may be millions of objects to free one by one.
    os._exit(0)
