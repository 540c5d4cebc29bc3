"""Output of stages and tools on a terminal: a line of progress, small drawings in text, a block that is refreshed."""
