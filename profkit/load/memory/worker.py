"""The program that unpickles a snapshot: ``python -m profkit.load.memory.worker``.

It reads the pickle from stdin and writes an :class:`~profkit.load.memory.answer.Answer` to stdout,
for the process that started it and for nobody else.
"""

import os
import pickle
import sys

from profkit.load.memory.answer import answer

if __name__ == "__main__":
    pickle.dump(answer(sys.stdin.buffer), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()
    # At once: there may be millions of objects to free one by one.
    os._exit(0)
