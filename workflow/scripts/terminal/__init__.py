"""What the workflow prints: a line per job, the last line, the reasons of failures."""
