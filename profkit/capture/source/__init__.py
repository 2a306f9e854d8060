"""From torch's stacks and call trees to the user's source lines."""
