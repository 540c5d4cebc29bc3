"""The kinds of sources, one file per kind, and their registry."""
