"""What keeps a training from hanging, diverging, and losing work."""
