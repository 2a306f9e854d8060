"""``torch.compile``: recompilations and graph breaks, by function and by line."""
