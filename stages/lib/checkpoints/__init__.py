"""Checkpoints: their format, writing, keeping, and finding."""
