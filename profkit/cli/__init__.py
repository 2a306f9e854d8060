"""The command line: one file per command. The only package that uses click, prints and exits."""
