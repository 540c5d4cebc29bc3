"""Architectures, one file each, and their registry."""
