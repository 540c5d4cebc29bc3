"""Checkpoints: their commit format, their tensors, which are kept, and finding a model by a path."""
