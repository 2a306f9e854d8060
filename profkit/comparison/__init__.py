"""Two reports or two snapshots compared: what is new, worse, better or fixed."""
