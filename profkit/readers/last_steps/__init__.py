"""The file of a program's last steps: its layout, and reading it."""
