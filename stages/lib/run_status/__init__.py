"""What `tools.status` shows: the state of a run directory, the queue, and one line per run."""
