"""The public names, lazily: importing profkit loads neither torch nor pandas."""

__version__ = "0.1.0"
