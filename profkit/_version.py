"""The version of this package, apart so that nothing imports the package to learn it."""

__version__ = "0.1.0"
