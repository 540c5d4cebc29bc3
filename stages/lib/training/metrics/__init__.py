"""What a training measures of itself, and where it writes it."""
