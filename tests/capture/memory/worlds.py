"""Small programs with known holders, and the chains found in them."""

from collections.abc import Callable
from types import ModuleType

from profkit.capture.memory.holders.holder_chains import find_chains
from profkit.model.live_memory import Chain

World = Callable[[str], ModuleType]

START = """\
import asyncio, collections, contextvars, dataclasses, functools, itertools, queue, threading
import types, weakref
import numpy as np
import torch
from torch import nn

def tracked(thing):
    global ref
    ref = weakref.ref(thing)
    return thing

def made():
    return tracked(torch.zeros(2))

class Holder:
    pass
"""


def of(module: ModuleType, limit: int = 3) -> tuple[Chain, ...]:
    """Return the chains to the object that a program tracks."""
    # After thousands of tests a process has more objects than most programs.
    return find_chains([module.ref()], limit=limit, budget_s=60.0)[0]


def text(chain: Chain) -> str:
    return "".join(chain.parts)
