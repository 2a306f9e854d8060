"""The command line: one file per command. The only package that knows click, prints and exits."""
