"""Programs that run already: recorded on request, with their stacks and their figures, live."""
