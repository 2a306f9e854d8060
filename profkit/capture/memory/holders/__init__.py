"""Finds what keeps an object alive: reference chains through Python, C++ and autograd."""
