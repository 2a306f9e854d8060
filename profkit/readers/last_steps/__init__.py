"""The file of last steps of a program's last steps: its layout, and reading it."""
