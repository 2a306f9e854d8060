"""Runs a program with CUDA as the default device.

Run: ``python tests/gpu/on_cuda.py PROGRAM [ARGUMENT…]``
"""

import runpy
import sys

import torch

if __name__ == "__main__":
    torch.set_default_device("cuda")
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
