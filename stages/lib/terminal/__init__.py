"""What stages and tools show on a terminal: a line of progress, small drawings in text, a block that is refreshed."""
