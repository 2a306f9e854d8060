"""The device side: streams, idle time and its causes, waits of the host."""
