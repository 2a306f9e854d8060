"""Leaks seen while a program ran: their causes, their findings, and the sentences of both."""
