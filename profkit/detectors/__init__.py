"""The catalogue: one module is one rule, and there is nothing else here."""
