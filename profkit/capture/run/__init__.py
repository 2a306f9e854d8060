"""``profkit run``: what is recorded of a program, of its workers and of its job."""
