"""Compilations by ``torch.compile``, and runs of compiled functions."""
