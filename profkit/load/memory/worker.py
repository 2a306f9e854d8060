"""The program that unpickles a snapshot: ``python -m profkit.load.memory.worker``.

It reads the pickle from stdin and writes an :class:`~profkit.load.memory.answer.Answer` to stdout,
for the process that started it and for nobody else.
"""

import gc
import os
import pickle
import sys

from profkit.load.memory.answer import answer
from profkit.load.memory.plain_pickle import MemoryLimit

if __name__ == "__main__":
    gc.disable()
    found = answer(sys.stdin.buffer, MemoryLimit().allow)
    pickle.dump(found, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()
    # At once: there may be millions of objects to free one by one.
    os._exit(0)
