"""The Model Context Protocol server, for language models that analyze recordings.

Source: https://modelcontextprotocol.io/specification
"""
